from lowtide._run import main

main()

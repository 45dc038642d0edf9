# The encoder, safetensors and parity files: more sources of the part's one test program.
target_sources(lowtide_nn_tests PRIVATE encoder_test.cpp encoder_tokens_test.cpp parity_test.cpp
                                        safetensors_test.cpp)

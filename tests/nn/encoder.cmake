# The encoder, safetensors and parity files: more sources of the part's one test program.
target_sources(lowtide_nn_tests PRIVATE encoder_test.cpp encoder_tokens_test.cpp parity_test.cpp
                                        safetensors_test.cpp)
add_test(NAME nn.slow COMMAND lowtide_nn_tests --test-suite=slow)
set_tests_properties(nn.slow PROPERTIES LABELS slow)

# The encoder, the files it loads and saves, and the check against expected values.
target_sources(lowtide_nn PRIVATE encoder.cpp encoder_tokens.cpp encoder_weights.cpp large_linear.cpp linear_cross_entropy.cpp parity.cpp
                                  safetensors.cpp sine_positional_encoding.cpp)

# The encoder, the files it loads and saves, and the check against expected values.
target_sources(lowtide_nn PRIVATE encoder.cpp encoder_tokens.cpp encoder_weights.cpp parity.cpp
                                  safetensors.cpp sine_positional_encoding.cpp)

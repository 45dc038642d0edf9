# The attention operator. Each file in kernels/ has its own instruction set; which one runs is chosen
# when the program starts (ms_deform_attn_dispatch.cpp).
target_sources(
  lowtide_nn
  PRIVATE ms_deform_attn.cpp ms_deform_attn_arguments.cpp ms_deform_attn_cpu.cpp
          ms_deform_attn_dispatch.cpp kernels/ms_deform_attn_plain.cpp)

# The loops are written to be vectorised: multiply-adds may be fused and comparisons need not trap,
# but NaN, infinity and signed zeros keep their meaning.
set(LOWTIDE_KERNEL_FLAGS -ffp-contract=fast -fno-trapping-math -fno-math-errno
                         $<$<NOT:$<CONFIG:Debug>>:-O3>)
set_source_files_properties(kernels/ms_deform_attn_plain.cpp
                            PROPERTIES COMPILE_OPTIONS "${LOWTIDE_KERNEL_FLAGS}"
                                       SKIP_PRECOMPILE_HEADERS ON)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_sources(lowtide_nn PRIVATE kernels/ms_deform_attn_avx2.cpp
                                    kernels/ms_deform_attn_avx512.cpp)
  target_compile_definitions(lowtide_nn PRIVATE LOWTIDE_X86_KERNELS)
  set_source_files_properties(kernels/ms_deform_attn_avx2.cpp
                              PROPERTIES COMPILE_OPTIONS "${LOWTIDE_KERNEL_FLAGS};-mavx2;-mfma"
                                         SKIP_PRECOMPILE_HEADERS ON)
  set(_avx512 -mavx512f -mavx512vl -mavx512dq -mavx512bw -mfma -mprefer-vector-width=512)
  set_source_files_properties(kernels/ms_deform_attn_avx512.cpp
                              PROPERTIES COMPILE_OPTIONS "${LOWTIDE_KERNEL_FLAGS};${_avx512}"
                                         SKIP_PRECOMPILE_HEADERS ON)
endif()

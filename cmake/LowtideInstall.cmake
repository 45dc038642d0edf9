# `cmake --install` lays out the program, the libraries and a package that find_package(lowtide) finds.
include(CMakePackageConfigHelpers)

install(TARGETS lowtide_base lowtide EXPORT lowtideTargets)
install(TARGETS lowtide_program lowtide_torch_verbs LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/lowtide" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lowtide")
install(EXPORT lowtideTargets NAMESPACE lowtide:: DESTINATION "${_package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/lowtideConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/lowtideConfig.cmake"
                              INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lowtideConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lowtideConfig.cmake"
              "${PROJECT_BINARY_DIR}/lowtideConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/LowtideTorch.cmake"
        DESTINATION "${_package_dir}")

# cmake --install: the program, libteratron (an archive per layer) with its headers, and what find_package(teratron) needs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY TERATRON_LIBRARIES)
list(FILTER layers EXCLUDE REGEX teratron_testing)
list(APPEND layers teratron_tensorboard_proto teratron_sentencepiece_proto)
list(TRANSFORM layers REPLACE "(.+)" "lib\\1.a" OUTPUT_VARIABLE TERATRON_ARCHIVES)
set(archive_folder ${CMAKE_INSTALL_LIBDIR}/teratron)
install(TARGETS teratron RUNTIME)
if(TARGET teratron_mpi)
  install(TARGETS teratron_mpi LIBRARY DESTINATION ${archive_folder})
  set_target_properties(teratron PROPERTIES INSTALL_RPATH "\$ORIGIN/../${archive_folder}")
endif()
install(TARGETS ${layers} ARCHIVE DESTINATION ${archive_folder})
install(CODE "set(TERATRON_SOURCE_DIR [[${CMAKE_SOURCE_DIR}]])
set(TERATRON_INCLUDE_FOLDER [[${CMAKE_INSTALL_INCLUDEDIR}]])")
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/InstallHeaders.cmake)
install(PROGRAMS ${CMAKE_SOURCE_DIR}/tools/wandb_follow.py DESTINATION ${CMAKE_INSTALL_DATADIR}/teratron)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/teratron)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/teratronConfig.cmake.in
                              ${CMAKE_BINARY_DIR}/teratronConfig.cmake INSTALL_DESTINATION ${package}
                              PATH_VARS archive_folder CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/teratronConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/teratronConfig.cmake ${CMAKE_BINARY_DIR}/teratronConfigVersion.cmake
              ${CMAKE_SOURCE_DIR}/cmake/TeratronTorch.cmake
        DESTINATION ${package})

# Library, headers, command line, and what find_package(tessera) needs.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
set(config_built ${CMAKE_CURRENT_BINARY_DIR}/cmake)
install(TARGETS tessera tessera_c EXPORT tesseraTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tessera_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/src/cost/machines DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${config_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tesseraConfig.cmake.in ${config_built}/tesseraConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${config_built}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${config_built}/tesseraConfig.cmake ${config_built}/tesseraConfigVersion.cmake DESTINATION ${config_dir})
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

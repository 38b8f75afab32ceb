# libtessera_mpi.so: what speaks to MPI, opened at run time when its ranks are asked for.
file(GLOB mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/collectives/mpi*.cpp)
add_library(tessera_mpi MODULE ${mpi_sources})
target_include_directories(tessera_mpi PRIVATE src ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(tessera_mpi PRIVATE ${TESSERA_WARNINGS} -ffp-contract=off -fno-math-errno)
# It takes what it needs of the static library, and shows only its entry.
set(mpi_symbols ${PROJECT_SOURCE_DIR}/collectives/mpi_symbols.map)
target_link_libraries(tessera_mpi PRIVATE tessera fmt::fmt Threads::Threads ${TESSERA_MPI_TARGETS})
target_link_options(tessera_mpi PRIVATE -Wl,--version-script=${mpi_symbols} -Wl,--no-undefined)
set_target_properties(tessera_mpi PROPERTIES LINK_DEPENDS ${mpi_symbols})
# Whoever runs a program in the build folder expects it to be there.
add_dependencies(tessera_cli tessera_mpi)
if(TESSERA_INSTALL)
  install(TARGETS tessera_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# libtessera_mpi.so: what speaks to MPI, opened at run time when ranks are processes.
add_library(tessera_mpi MODULE collectives/mpi_plugin.cpp src/base/caller.cpp src/base/edit_distance.cpp src/base/error.cpp)
target_include_directories(tessera_mpi PRIVATE include src ${PROJECT_SOURCE_DIR})
target_compile_options(tessera_mpi PRIVATE ${TESSERA_WARNINGS})
target_compile_features(tessera_mpi PRIVATE cxx_std_20)
target_link_libraries(tessera_mpi PRIVATE fmt::fmt ${TESSERA_MPI_TARGETS})
# Whatever links the library has it beside itself.
add_dependencies(tessera tessera_mpi)
if(TESSERA_INSTALL)
  install(TARGETS tessera_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# Finds the optional packages and says once what was found.

# BLAS with CBLAS headers: OpenBLAS.
find_path(TESSERA_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas-pthread openblas REQUIRED)
find_library(TESSERA_OPENBLAS NAMES openblas PATH_SUFFIXES openblas-pthread REQUIRED)
add_library(tessera_openblas INTERFACE)
target_include_directories(tessera_openblas INTERFACE $<BUILD_INTERFACE:${TESSERA_CBLAS_INCLUDE}>)
target_link_libraries(tessera_openblas INTERFACE ${TESSERA_OPENBLAS})
set(TESSERA_BLAS_TARGETS $<BUILD_INTERFACE:tessera_openblas> $<INSTALL_INTERFACE:${TESSERA_OPENBLAS}>)

# oneDNN for float32 products, where it was built on OpenMP (Debian's is).
set(TESSERA_HAVE_DNNL OFF)
if(NOT TESSERA_DNNL STREQUAL "OFF")
  find_path(TESSERA_DNNL_INCLUDE dnnl.h)
  find_library(TESSERA_DNNL_LIBRARY NAMES dnnl)
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(TESSERA_DNNL_INCLUDE AND TESSERA_DNNL_LIBRARY AND OpenMP_CXX_FOUND)
    set(TESSERA_HAVE_DNNL ON)
    add_library(tessera_dnnl INTERFACE)
    target_include_directories(tessera_dnnl INTERFACE ${TESSERA_DNNL_INCLUDE})
    target_link_libraries(tessera_dnnl INTERFACE ${TESSERA_DNNL_LIBRARY} ${OpenMP_CXX_LIBRARIES})
    list(APPEND TESSERA_BLAS_TARGETS $<BUILD_INTERFACE:tessera_dnnl>
      $<INSTALL_INTERFACE:${TESSERA_DNNL_LIBRARY}> ${OpenMP_CXX_LIBRARIES})
    target_compile_definitions(tessera_dnnl INTERFACE TESSERA_HAVE_DNNL)
  elseif(TESSERA_DNNL STREQUAL "ON")
    message(FATAL_ERROR "TESSERA_DNNL is ON but oneDNN (libdnnl-dev) or OpenMP was not found")
  endif()
endif()

set(TESSERA_HAVE_MPI OFF)
if(NOT TESSERA_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX TRUE)
  if(TESSERA_MPI STREQUAL "ON")
    find_package(MPI 3.1 REQUIRED COMPONENTS CXX)
  else()
    find_package(MPI 3.1 QUIET COMPONENTS CXX)
  endif()
  if(MPI_CXX_FOUND)
    set(TESSERA_HAVE_MPI ON)
    set(TESSERA_MPI_TARGETS MPI::MPI_CXX)
  endif()
endif()

message(STATUS "Tessera ${PROJECT_VERSION}: OpenBLAS ${TESSERA_OPENBLAS}; oneDNN ${TESSERA_HAVE_DNNL}; MPI ${TESSERA_HAVE_MPI} ${MPI_CXX_VERSION}")

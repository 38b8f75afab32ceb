# cmake -DBUILD=... -DSOURCE=... -DWORK=... -DCOMPILER=... -DFLAGS=... -DTYPE=... -DMPI_RUN=... -DGENERATOR=... -P run.cmake
# Installs to a prefix of its own, moves it, builds the consumers in C++ and C against it and runs all programs.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)  # an install tree does not know where it lies
if(NOT EXISTS ${WORK}/prefix/share/doc/tessera/docs/index.md)
  message(FATAL_ERROR "the manual is not installed")
endif()
run(${CMAKE_COMMAND} -G "${GENERATOR}" -S ${SOURCE}/tests/install -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_BUILD_TYPE=${TYPE})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/app)
run(${CMAKE_COMMAND} -E chdir ${WORK} ${WORK}/build/c_app)
# Its library exports the C interface, and nothing else.
file(GLOB library ${WORK}/prefix/lib*/libtessera.so)
execute_process(COMMAND nm -D --defined-only ${library} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
list(LENGTH symbols count)
list(FILTER symbols EXCLUDE REGEX " (T tessera_[a-z_]+@@TESSERA_0.1|A TESSERA_0.1)$")
if(symbols OR count LESS 10)
  message(FATAL_ERROR "libtessera.so exports ${symbols}")
endif()
run(${WORK}/prefix/bin/tessera info)
# MPI is opened where it is installed, and nothing else needs it.
file(GLOB plugin ${WORK}/prefix/lib*/libtessera_mpi.so)
if(plugin)
  run(${MPI_RUN} 2 ${WORK}/build/app processes)
  run(${MPI_RUN} 2 ${WORK}/build/mpi_app)
  file(REMOVE ${plugin})
  run(${WORK}/build/app)
endif()
file(REMOVE_RECURSE ${WORK})

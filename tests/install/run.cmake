# cmake -DBUILD=... -DSOURCE=... -DWORK=... -DCOMPILER=... -DFLAGS=... -DTYPE=... -DGENERATOR=... -P run.cmake
# Installs to a prefix of its own, moves it, builds the consumer against it and runs both programs.
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
run(${WORK}/prefix/bin/tessera info)
file(REMOVE_RECURSE ${WORK})

# cmake -DSOURCE=... -DWORK=... -DGENERATOR=... -P missing.cmake
# A configuration that lacks a library names its package, and one with a compiler that is too old names that, at once.
function(expect text)
  file(REMOVE_RECURSE ${WORK}/build)
  execute_process(COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${WORK}/build ${ARGN}
    OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status TIMEOUT 120)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "${text}" at)
  if(status EQUAL 0 OR at EQUAL -1)
    message(FATAL_ERROR "expected '${text}', got status ${status}: ${said}")
  endif()
endfunction()

expect("missing, with the packages of Debian and Ubuntu: fmt (libfmt-dev) CLI11 (libcli11-dev); scripts/setup_packages installs them"
  -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON)
expect("OpenBLAS (libopenblas-pthread-dev);" -DTESSERA_OPENBLAS=)
file(WRITE ${WORK}/old.sh "#!/bin/sh\nexec g++ -U__GNUC__ -D__GNUC__=11 \"$@\"\n")
file(CHMOD ${WORK}/old.sh PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
expect("Tessera needs 12 or newer (Debian, Ubuntu: g++-12)" -DCMAKE_CXX_COMPILER=${WORK}/old.sh)

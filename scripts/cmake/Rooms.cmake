# In a unity build several files of a room are compiled at a time, which parses headers and instantiates templates once for
# all of them. So a name has one meaning in a room, in anonymous namespaces too; tests, which have many, write
# `namespace TESSERA_FILE {` for an anonymous namespace that is the file's own. Sources with compile options or definitions of
# their own stay alone. Few cores are busy anyway, and take more files at a time, small rooms together, if there is the memory: a
# unit takes up to 2.5 GB.
#   tessera_rooms(TARGET SOURCE...)
cmake_host_system_information(RESULT tessera_cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT tessera_memory QUERY TOTAL_PHYSICAL_MEMORY)  # in MiB
if(tessera_cores LESS_EQUAL 4 AND tessera_memory GREATER 6000)
  set(tessera_at_a_time 128)
  set(tessera_small_rooms src_base src_program src_ir src_ops src_grad src_cost src_compile src_runtime src_gpu src_session
    collectives kernels_common kernels_cuda src_nn src_optim src_generate src_io src_pages  # and of the tests:
    kernels cost program grad nn generate tokenizer pytorch)
else()
  set(tessera_at_a_time 12)
endif()
function(tessera_rooms target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP UNITY_BUILD_UNIQUE_ID TESSERA_FILE)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH room)
    cmake_path(ABSOLUTE_PATH room)
    cmake_path(RELATIVE_PATH room BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    string(REGEX REPLACE "^(src/[^/]+)/.*" "\\1" room "${room}")
    string(MAKE_C_IDENTIFIER "${room}" room)
    if(room IN_LIST tessera_small_rooms)
      set(room small_rooms)
    endif()
    list(APPEND of_${room} ${source})
    list(APPEND rooms ${room})
  endforeach()
  list(REMOVE_DUPLICATES rooms)
  foreach(room IN LISTS rooms)
    list(LENGTH of_${room} count)
    math(EXPR parts "(${count} - 1) / ${tessera_at_a_time} + 1")
    set(i 0)
    foreach(source IN LISTS of_${room})
      math(EXPR part "${i} * ${parts} / ${count}")
      set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${room}_${part})
      math(EXPR i "${i} + 1")
    endforeach()
  endforeach()
endfunction()

# In a unity build several files of a room are compiled at a time, which parses headers and instantiates templates once for
# all of them. So a name has one meaning in a room, in anonymous namespaces too; tests, which have many, write
# `namespace TESSERA_FILE {` for an anonymous namespace that is the file's own. Sources with compile options or definitions of
# their own stay alone. Few cores are busy anyway, and take more files at a time; what half of a large room takes is 1.3 GB.
#   tessera_rooms(TARGET SOURCE...)
cmake_host_system_information(RESULT tessera_cores QUERY NUMBER_OF_LOGICAL_CORES)
if(tessera_cores LESS_EQUAL 4)
  set(tessera_at_a_time 48)
else()
  set(tessera_at_a_time 12)
endif()
function(tessera_rooms target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP UNITY_BUILD_UNIQUE_ID TESSERA_FILE)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH room)
    cmake_path(ABSOLUTE_PATH room)
    cmake_path(RELATIVE_PATH room BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER "${room}" room)
    list(APPEND of_${room} ${source})
    list(LENGTH of_${room} count)
    math(EXPR part "(${count} - 1) / ${tessera_at_a_time}")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${room}_${part})
  endforeach()
endfunction()

# In a unity build several files of a room are compiled at a time, which parses headers and instantiates templates once for
# all of them. So a name has one meaning in a room, in anonymous namespaces too. Sources with compile options or definitions
# of their own stay alone.
#   tessera_rooms(TARGET AT_A_TIME SOURCE...)
function(tessera_rooms target at_a_time)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH room)
    cmake_path(RELATIVE_PATH room BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER "${room}" room)
    list(APPEND of_${room} ${source})
    list(LENGTH of_${room} count)
    math(EXPR part "(${count} - 1) / ${at_a_time}")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${room}_${part})
  endforeach()
endfunction()

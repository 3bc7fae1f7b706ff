# install_builds_first(<target> [<component>]): makes `cmake --install` of everything, or of this
# component, build this target if it is missing, as `make install` would. A build of only some
# targets, such as that of `./dev demo`, can therefore be installed. The target `installed` depends
# on every target given here.
add_custom_target(installed)
function(install_builds_first target)
  set(component ${ARGN})
  if(NOT component)
    set(component Unspecified)
  endif()
  add_dependencies(installed ${target})
  install(CODE "
    if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
      message(STATUS \"Building first what is not there: $<TARGET_FILE_NAME:${target}>\")
      execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${PROJECT_BINARY_DIR}\" --target installed
        COMMAND_ERROR_IS_FATAL ANY)
    endif()" COMPONENT ${component})
endfunction()

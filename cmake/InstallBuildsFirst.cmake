# install_builds_first(<target> [<component>]): `cmake --install` of all, or of this component, builds
# this target if it is not there, as `make install` would. A build of some targets only, like that of
# `./dev demo`, can so be installed. Target `installed` is all that asked.
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

# install_builds_first(<target>): `cmake --install` builds this target if it is not there, as
# `make install` would. A build of some targets only, like that of `./dev demo`, can so be installed.
# Target `installed` is all that asked.
add_custom_target(installed)
function(install_builds_first target)
  add_dependencies(installed ${target})
  install(CODE "
    if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
      message(STATUS \"Building first what is not there: $<TARGET_FILE_NAME:${target}>\")
      execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${PROJECT_BINARY_DIR}\" --target installed
        COMMAND_ERROR_IS_FATAL ANY)
    endif()")
endfunction()

# tutti_manual(<tool> <file>): makes a manual page whenever the tool is linked. help2man makes it
# from the tool's output (--help, --version) and the file's further sections. `cmake --install`
# finds the page by the tool's property TUTTI_MANUAL. There is no page if the tool cannot be run or
# help2man is missing.
find_program(HELP2MAN help2man)
if(NOT HELP2MAN)
  message(STATUS "Manual pages are not made: there is no help2man")
endif()
function(tutti_manual tool file)
  if(NOT HELP2MAN OR CMAKE_CROSSCOMPILING OR TUTTI_SANITIZE)
    return()
  endif()
  set(text ${CMAKE_CURRENT_BINARY_DIR}/${tool}.1)
  set(manual ${text}.gz)
  # help2man passes the tool's path to a shell, so a folder with spaces in its name would break it.
  add_custom_command(TARGET ${tool} POST_BUILD BYPRODUCTS ${manual}
    WORKING_DIRECTORY $<TARGET_FILE_DIR:${tool}>
    COMMAND ${HELP2MAN} --no-info --manual "Tutti" --include ${CMAKE_CURRENT_SOURCE_DIR}/${file}
      --output ${text} ./$<TARGET_FILE_NAME:${tool}>
    COMMAND sed -i -f ${PROJECT_SOURCE_DIR}/cmake/manual_examples.sed ${text}
    COMMAND gzip -9nf ${text})
  set_target_properties(${tool} PROPERTIES TUTTI_MANUAL ${manual}
    LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
endfunction()

# Installs the Python package in two forms. An installed package uses the installed libraries. The
# component `wheel`, for scikit-build-core, contains the libraries, plugins and tutti-run.
if(SKBUILD)
  # Some plugins need libraries that a wheel for other machines cannot contain. They can be left out
  # here, so that only builds on the machine itself have them.
  set(TUTTI_WHEEL_PLUGINS "" CACHE STRING "Plugins of the wheel, as nccl;cuda; empty: all that are built")
  get_property(plugins GLOBAL PROPERTY TUTTI_BACKEND_PLUGINS)
  if(TUTTI_WHEEL_PLUGINS)
    list(JOIN TUTTI_WHEEL_PLUGINS "|" wanted)
    list(FILTER plugins INCLUDE REGEX "_(${wanted})$")
  endif()
  add_custom_target(wheel DEPENDS tutti_python ${plugins})
  install(TARGETS tutti_python LIBRARY DESTINATION tutti COMPONENT wheel)
  set_target_properties(tutti_python PROPERTIES INSTALL_RPATH $ORIGIN/lib)
  # A wheel cannot hold links, so the only file has the name that programs look for.
  set_target_properties(tutti PROPERTIES VERSION ${TUTTI_SOVERSION})
  install(TARGETS tutti LIBRARY DESTINATION tutti/lib COMPONENT wheel NAMELINK_SKIP)
  foreach(plugin ${plugins})
    install(TARGETS ${plugin} LIBRARY DESTINATION tutti/lib COMPONENT wheel)
    set_target_properties(${plugin} PROPERTIES INSTALL_RPATH $ORIGIN) # beside the library
  endforeach()
  if(TARGET tutti-run)
    add_dependencies(wheel tutti-run)
    install(TARGETS tutti-run RUNTIME DESTINATION tutti/bin COMPONENT wheel)
    set_target_properties(tutti-run PROPERTIES INSTALL_RPATH $ORIGIN/../lib)
  endif()
  return()
endif()

install_builds_first(tutti_python python)
file(RELATIVE_PATH to_libraries /lib/python3/dist-packages/tutti /${CMAKE_INSTALL_LIBDIR})
set_target_properties(tutti_python PROPERTIES INSTALL_RPATH $ORIGIN/${to_libraries})
install(TARGETS tutti_python LIBRARY DESTINATION lib/python3/dist-packages/tutti COMPONENT python)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/adapters/python/tutti/ DESTINATION lib/python3/dist-packages/tutti
  COMPONENT python FILES_MATCHING PATTERN *.py PATTERN *.pyi PATTERN py.typed PATTERN __pycache__ EXCLUDE)

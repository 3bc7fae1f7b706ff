# The Python package, twice: in an installation, over its libraries; and as the component `wheel`, by
# scikit-build-core, with the libraries, plugins and tutti-run inside it.
if(SKBUILD)
  # Libraries that a wheel for other machines cannot bring along are left to builds on the machine.
  set(TUTTI_WHEEL_PLUGINS "" CACHE STRING "Plugins of the wheel, as nccl;cuda; empty: all that are built")
  get_property(plugins GLOBAL PROPERTY TUTTI_BACKEND_PLUGINS)
  if(TUTTI_WHEEL_PLUGINS)
    list(JOIN TUTTI_WHEEL_PLUGINS "|" wanted)
    list(FILTER plugins INCLUDE REGEX "_(${wanted})$")
  endif()
  add_custom_target(wheel DEPENDS tutti_python ${plugins})
  install(TARGETS tutti_python LIBRARY DESTINATION tutti COMPONENT wheel)
  set_target_properties(tutti_python PROPERTIES INSTALL_RPATH $ORIGIN/lib)
  # A wheel has no links: the one file is called as programs ask for it.
  set_target_properties(tutti PROPERTIES VERSION ${TUTTI_SOVERSION})
  install(TARGETS tutti LIBRARY DESTINATION tutti/lib COMPONENT wheel NAMELINK_SKIP)
  foreach(plugin ${plugins})
    install(TARGETS ${plugin} LIBRARY DESTINATION tutti/lib COMPONENT wheel)
    set_target_properties(${plugin} PROPERTIES INSTALL_RPATH $ORIGIN) # there beside the library
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

# Defines what `cmake --install` installs: libraries, headers, tools, a CMake package, a pkg-config
# file, documents and examples. All files refer to each other by relative paths, so the tree can be
# moved. `cmake --install --component` installs a part: runtime, nn, development, torch,
# torch_development, tools, documents, and each plugin by its name (gloo, cuda). The component
# license belongs to all of them.
include(CMakePackageConfigHelpers)
include(InstallBuildsFirst)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
# plugin_folder() of base/plugin.h must return the same folder.
set(plugin_dir ${CMAKE_INSTALL_LIBDIR}/tutti-${TUTTI_SOVERSION})

# A library finds the other libraries in its own folder; a program finds them in the library folder.
function(tutti_install target component)
  install_builds_first(${target} ${component})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    file(RELATIVE_PATH to_libraries /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN/${to_libraries})
    install(TARGETS ${target} RUNTIME COMPONENT ${component})
  else()
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN)
    install(TARGETS ${target} EXPORT tutti
      LIBRARY COMPONENT ${component} NAMELINK_COMPONENT development)
  endif()
endfunction()

# Installs the public headers of a target, each where programs include it.
function(tutti_install_headers target component)
  tutti_listed_headers(headers "${target}")
  foreach(header ${headers})
    cmake_path(GET header PARENT_PATH folder)
    set(folder tutti/${folder})
    if(header STREQUAL "adapters/c/tutti.h")
      set(folder "")
    elseif(header STREQUAL "core/tutti.h" OR header STREQUAL "adapters/nn/nn.h")
      set(folder tutti)
    endif()
    install(FILES ${PROJECT_SOURCE_DIR}/${header}
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder} COMPONENT ${component})
  endforeach()
endfunction()

tutti_install_headers("" development)
set_target_properties(tutti PROPERTIES EXPORT_NAME c)
set_target_properties(tutti_cpp PROPERTIES EXPORT_NAME tutti)
install(TARGETS tutti_cpp EXPORT tutti)
tutti_install(tutti runtime)
if(TARGET tutti_nn)
  set_target_properties(tutti_nn PROPERTIES EXPORT_NAME nn)
  tutti_install(tutti_nn nn)
  tutti_install_headers(tutti_nn development)
endif()
# The users of tutti_torch have LibTorch and its CMake package, so its export is a separate file.
if(TARGET tutti_torch)
  install_builds_first(tutti_torch torch)
  set_target_properties(tutti_torch PROPERTIES EXPORT_NAME torch INSTALL_RPATH $ORIGIN)
  install(TARGETS tutti_torch EXPORT tutti_torch
    LIBRARY COMPONENT torch NAMELINK_COMPONENT torch_development)
  install(EXPORT tutti_torch NAMESPACE tutti:: DESTINATION ${package_dir}
    FILE tuttiTorchTargets.cmake COMPONENT torch_development)
  tutti_install_headers(tutti_torch torch_development)
endif()
# The library finds its plugins in this folder at run time; no program links them.
get_property(plugins GLOBAL PROPERTY TUTTI_BACKEND_PLUGINS)
foreach(plugin ${plugins})
  string(REGEX REPLACE "^tutti_[a-z]+_" "" component ${plugin})
  install_builds_first(${plugin} ${component})
  set_target_properties(${plugin} PROPERTIES INSTALL_RPATH $ORIGIN/..)
  install(TARGETS ${plugin} LIBRARY DESTINATION ${plugin_dir} COMPONENT ${component})
endforeach()
foreach(tool tutti-run tutti-bench tutti-doctor)
  if(TARGET ${tool})
    tutti_install(${tool} tools)
    get_target_property(manual ${tool} TUTTI_MANUAL)
    if(manual)
      install(FILES ${manual} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
    endif()
  endif()
endforeach()

if(TARGET tutti_python)
  include(TuttiPythonInstall)
endif()

install(EXPORT tutti NAMESPACE tutti:: DESTINATION ${package_dir} FILE tuttiTargets.cmake
  COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tuttiConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tuttiConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)

# Programs are linked with the library's folder, so that they start without LD_LIBRARY_PATH under
# any prefix. The loader already searches the folder of the system's own libraries.
set(link_rpath " -Wl,-rpath,\${libdir}")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(link_rpath "")
endif()
file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT license)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/SECURITY.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents)
if(TUTTI_PACKAGES)
  include(TuttiPackages)
endif()

# What `cmake --install` lays down: libraries, headers, tools, a CMake package, a pkg-config file,
# documents and examples. Everything refers to its neighbours by relative paths, so that the tree can
# be moved.
include(CMakePackageConfigHelpers)
include(InstallBuildsFirst)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)

# Each library finds its sisters beside it, each program finds them in the library folder.
function(tutti_install target)
  install_builds_first(${target})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    file(RELATIVE_PATH to_libraries /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN/${to_libraries})
    install(TARGETS ${target} RUNTIME)
  else()
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN)
    install(TARGETS ${target} EXPORT tutti LIBRARY ARCHIVE)
  endif()
endfunction()

# Headers of a folder, but for those that need a third-party library: they belong to our own sources.
function(tutti_install_headers folder)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/${folder}/*.h)
  list(FILTER headers EXCLUDE REGEX "^kernels/cuda/")
  foreach(header ${headers})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} private REGEX "^#include <(fmt|boost|hwy|openssl|oneapi|nlohmann|gloo|ucp)/")
    cmake_path(GET header PARENT_PATH place)
    if(NOT private)
      install(FILES ${PROJECT_SOURCE_DIR}/${header}
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti/${place})
    endif()
  endforeach()
endfunction()

foreach(folder base tensor kernels collectives backends core adapters/c)
  tutti_install_headers(${folder})
endforeach()
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/adapters/*.h)
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti/adapters)
install(FILES ${PROJECT_SOURCE_DIR}/core/tutti.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti)
install(FILES ${PROJECT_SOURCE_DIR}/adapters/c/tutti.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set_target_properties(tutti PROPERTIES EXPORT_NAME c)
set_target_properties(tutti_cpp PROPERTIES EXPORT_NAME tutti)
install(TARGETS tutti_cpp EXPORT tutti)
tutti_install(tutti)
if(TARGET tutti_nn)
  set_target_properties(tutti_nn PROPERTIES EXPORT_NAME nn)
  tutti_install(tutti_nn)
  tutti_install_headers(adapters/nn)
  install(FILES ${PROJECT_SOURCE_DIR}/adapters/nn/nn.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti)
endif()
# Plugins lie beside libtutti.so, which looks for them there; no program links them.
get_property(plugins GLOBAL PROPERTY TUTTI_BACKEND_PLUGINS)
foreach(plugin ${plugins})
  install_builds_first(${plugin})
  set_target_properties(${plugin} PROPERTIES INSTALL_RPATH $ORIGIN)
  install(TARGETS ${plugin} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
foreach(tool tutti-run tutti-bench tutti-doctor)
  if(TARGET ${tool})
    tutti_install(${tool})
  endif()
endforeach()

install(EXPORT tutti NAMESPACE tutti:: DESTINATION ${package_dir} FILE tuttiTargets.cmake)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tuttiConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tuttiConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  DESTINATION ${package_dir})

file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples
  DESTINATION ${CMAKE_INSTALL_DOCDIR})

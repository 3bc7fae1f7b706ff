# Makes Debian packages of the installed files, by `cpack` in a build with the preset `package`;
# `./dev package` does both. The names of the libraries, the plugins' folder and the packages
# contain the version, so programs of two versions can be used on one system.
set(TUTTI_PACKAGE_VERSION ${PROJECT_VERSION} CACHE STRING "Version of the Debian packages")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_VERSION ${TUTTI_PACKAGE_VERSION})
# Debian's own tools read the packager's name and address from these variables too.
set(name $ENV{DEBFULLNAME})
set(mail $ENV{DEBEMAIL})
if(NOT name OR NOT mail)
  set(name "Tutti")
  set(mail "tutti@packages.invalid")
endif()
set(CPACK_PACKAGE_CONTACT "${name} <${mail}>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL "")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
# The dependencies among these packages are written below. dpkg-shlibdeps finds all others.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR} ${PROJECT_BINARY_DIR}/adapters/nn)

set(changelog_date_format "%a, %d %b %Y %H:%M:%S +0000")
string(TIMESTAMP PACKAGE_DATE "${changelog_date_format}" UTC) # honors SOURCE_DATE_EPOCH
set(package_files ${PROJECT_BINARY_DIR}/package_files)
configure_file(${PROJECT_SOURCE_DIR}/cmake/debian/changelog.in ${package_files}/changelog @ONLY)
file(ARCHIVE_CREATE OUTPUT ${package_files}/changelog.gz PATHS ${package_files}/changelog
  FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)

# tutti_package(<component> <package> SECTION <section> SUMMARY <line> TEXT <lines>
#   [OF_ANY_MACHINE] [SHARED_LIBRARY] [DEPENDS|RECOMMENDS|SUGGESTS <package>...])
function(tutti_package component package)
  cmake_parse_arguments(ARG "OF_ANY_MACHINE;SHARED_LIBRARY" "SECTION;SUMMARY;TEXT"
    "DEPENDS;RECOMMENDS;SUGGESTS" ${ARGN})
  string(TOUPPER ${component} key)
  set(variable CPACK_DEBIAN_${key})
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)
  set(${variable}_PACKAGE_NAME ${package} PARENT_SCOPE)
  set(${variable}_PACKAGE_SECTION ${ARG_SECTION} PARENT_SCOPE)
  set(CPACK_COMPONENT_${key}_DESCRIPTION "${ARG_SUMMARY}
Tutti averages gradients over threads, processes and hosts, for any training
loop in C or C++.
${ARG_TEXT}" PARENT_SCOPE)
  foreach(relation DEPENDS RECOMMENDS SUGGESTS)
    list(JOIN ARG_${relation} ", " packages)
    set(${variable}_PACKAGE_${relation} "${packages}" PARENT_SCOPE)
  endforeach()
  if(ARG_OF_ANY_MACHINE)
    set(${variable}_PACKAGE_ARCHITECTURE all PARENT_SCOPE)
  else()
    set(${variable}_PACKAGE_SHLIBDEPS ON PARENT_SCOPE)
  endif()
  install(FILES ${package_files}/changelog.gz ${PROJECT_SOURCE_DIR}/cmake/debian/copyright
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  if(ARG_SHARED_LIBRARY)
    install(FILES ${PROJECT_SOURCE_DIR}/cmake/debian/library.lintian-overrides
      DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME ${package} COMPONENT ${component})
  endif()
endfunction()

set(this "(= ${TUTTI_PACKAGE_VERSION})")
set(library libtutti${TUTTI_SOVERSION})

tutti_package(runtime ${library} SECTION libs SHARED_LIBRARY
  SUMMARY "collective communication for data-parallel training"
  TEXT "Tensors are matched by name over all ranks, fused into buckets and reduced
through shared memory, TCP or both, while the program goes on."
  SUGGESTS tutti-tools ${library}-gloo ${library}-ucx)
set(development_needs "${library} ${this}")
if(TARGET tutti_nn)
  tutti_package(nn libtutti-nn${TUTTI_SOVERSION} SECTION libs SHARED_LIBRARY
    SUMMARY "small trainer of neural networks on several ranks"
    TEXT "This is the trainer that comes with it: layers by oneDNN, and an Adam that is
fused with the reduction and divided over the ranks."
    DEPENDS "${library} ${this}")
  list(APPEND development_needs "libtutti-nn${TUTTI_SOVERSION} ${this}")
endif()
if(TARGET tutti_torch)
  # LibTorch's interface differs between versions, so these packages are for one version of it.
  tutti_package(torch libtutti-torch${TUTTI_SOVERSION} SECTION libs SHARED_LIBRARY
    SUMMARY "Tutti for LibTorch"
    TEXT "Optimizers of LibTorch step on the gradients of all ranks, in C++."
    DEPENDS "${library} ${this}")
  tutti_package(torch_development libtutti-torch-dev SECTION libdevel
    SUMMARY "Tutti for LibTorch (headers)"
    TEXT "These are the headers of its LibTorch adapter and what CMake needs for it."
    DEPENDS "libtutti-torch${TUTTI_SOVERSION} ${this}" "libtutti-dev ${this}" libtorch-dev)
endif()
tutti_package(development libtutti-dev SECTION libdevel
  SUMMARY "collective communication for data-parallel training (headers)"
  TEXT "These are the headers for C++20 and C, the CMake package and the pkg-config
file."
  DEPENDS ${development_needs} SUGGESTS tutti-doc)
tutti_package(tools tutti-tools SECTION utils
  SUMMARY "launcher, doctor and benchmark of Tutti"
  TEXT "tutti-run starts a program as several ranks, here or on other hosts;
tutti-doctor tells what works on a machine, and why the rest does not;
tutti-bench measures."
  DEPENDS "${library} ${this}" RECOMMENDS openssh-client)
tutti_package(documents tutti-doc SECTION doc OF_ANY_MACHINE
  SUMMARY "documents and examples of Tutti"
  TEXT "These are its documents, and examples in C++, C and Python that can be built
and run as they are.")
if(TARGET tutti_python)
  tutti_package(python python3-tutti SECTION python
    SUMMARY "collective communication for data-parallel training (Python)"
    TEXT "This is the package tutti for Python 3, for numpy and everything that exports a
buffer or DLPack, and tutti.torch for PyTorch."
    DEPENDS "python3 (>= 3.11)" "${library} ${this}" RECOMMENDS python3-numpy tutti-tools
    SUGGESTS python3-torch)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA
    ${PROJECT_SOURCE_DIR}/cmake/debian/postinst ${PROJECT_SOURCE_DIR}/cmake/debian/prerm)
endif()

# Each plugin is a package. It recommends the packages that it loads at run time.
if(TARGET tutti_backend_gloo)
  tutti_package(gloo ${library}-gloo SECTION libs DEPENDS "${library} ${this}"
    SUMMARY "backend of Tutti over Gloo" TEXT "Ranks talk through Gloo, over TCP.")
endif()
if(TARGET tutti_backend_ucx)
  tutti_package(ucx ${library}-ucx SECTION libs DEPENDS "${library} ${this}"
    SUMMARY "backend of Tutti over UCX"
    TEXT "Ranks talk through UCX: InfiniBand, RoCE, shared memory or TCP.")
endif()
if(TARGET tutti_backend_nccl)
  tutti_package(nccl ${library}-nccl SECTION libs DEPENDS "${library} ${this}" RECOMMENDS libnccl2
    SUMMARY "backend of Tutti over NCCL"
    TEXT "Ranks with NVIDIA GPUs talk through NCCL, which comes from NVIDIA and is
loaded when it is used.")
endif()
if(TARGET tutti_device_cuda)
  tutti_package(cuda ${library}-cuda SECTION libs DEPENDS "${library} ${this}" RECOMMENDS libcuda1
    SUMMARY "support of NVIDIA GPUs in Tutti"
    TEXT "Tensors in the memory of NVIDIA GPUs are packed and unpacked there. The driver
comes from NVIDIA and is loaded when it is used.")
endif()
include(CPack)

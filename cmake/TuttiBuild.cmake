# gcc's -Og takes a third less of the compiler's time than its -O1, and half of it where that meets what
# a sanitizer adds; clang's is its -O1.
set(TUTTI_O1 -O1)
if(TUTTI_QUICK_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(TUTTI_O1 -Og)
endif()

# gold links a test in a third of the default linker's time.
find_program(TUTTI_QUICK_LINKER ld.gold)
if(TUTTI_QUICK_BUILD AND TUTTI_QUICK_LINKER AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(
    $<$<AND:$<LINK_LANGUAGE:C,CXX>,$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>>:-fuse-ld=gold>)
endif()

# Compile options of our own code.
function(tutti_options target)
  # Of the widths that Highway compiles its loops for, a sanitizer sees the narrowest and the usual one;
  # to tsan, which sees threads, they are all alike.
  set(widths HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL)
  if(TUTTI_SANITIZE STREQUAL "thread")
    string(APPEND widths |HWY_AVX2)
  endif()
  # gcc 12 sees overlapping copies in std::string's operator+ where there are none (its bug 105651).
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${TUTTI_WERROR}>:-Werror>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  if(TUTTI_QUICK_BUILD)
    # Memory for time: the compiler collects no garbage before it has made a gigabyte of it.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>)
  endif()
  if(TUTTI_LESS_OPTIMIZED AND NOT TUTTI_SANITIZE)
    # Spares the compiler more than any other option. What is shipped and measured, --full tests.
    target_compile_options(${target} PRIVATE
      $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<CONFIG:Release,RelWithDebInfo>>:-O1>)
  endif()
  if(TUTTI_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all -g1  # lines, for the reports
      $<$<BOOL:${TUTTI_QUICK_BUILD}>:${TUTTI_O1}>  # these builds are not measured
      "$<$<BOOL:${TUTTI_QUICK_BUILD}>:-DHWY_DISABLED_TARGETS=(${widths})>"
      # Instrumented, gcc 12 no longer sees what std::regex initializes (its bug 105562).
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    # The release build has the compiler check every format; these need not.
    target_compile_definitions(${target} PRIVATE $<$<BOOL:${TUTTI_QUICK_BUILD}>:FMT_CONSTEVAL=>)
    if(TUTTI_QUICK_BUILD AND TUTTI_SANITIZE MATCHES "address,undefined")
      # Of ubsan's many checks those for what asan sees as well.
      target_compile_options(${target} PRIVATE -fno-sanitize=null,object-size)
      if(NOT TUTTI_FULL_TESTS)
        # The others trap every day, and asan shows where (run_asan_daily() of dev): what tells of each in
        # words is a third of all code, and nearly all data.
        target_compile_options(${target} PRIVATE -fno-sanitize=vptr
          $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fsanitize-undefined-trap-on-error>)
        # What the library's own variables are used for after their block is seen in --full: a quarter of the
        # compiler's time, and two thirds of it where Highway's loops are inlined. Tests have it every day.
        get_target_property(type ${target} TYPE)
        if(type MATCHES "^(SHARED|MODULE)_LIBRARY$")
          target_compile_options(${target} PRIVATE
            $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-sanitize-address-use-after-scope>)
        endif()
      endif()
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${TUTTI_SANITIZE})
  endif()
  get_target_property(type ${target} TYPE)
  if(TUTTI_COVERAGE AND type MATCHES "LIBRARY$")
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fsanitize-coverage=trace-pc> -g1)
    target_link_libraries(${target} PRIVATE tutti_coverage)
  endif()
endfunction()

# clang tells of its sanitizers by __has_feature alone; our code asks by gcc's names, which it knows too.
if(TUTTI_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  foreach(sanitizer address thread)
    if(TUTTI_SANITIZE MATCHES ${sanitizer})
      string(TOUPPER __SANITIZE_${sanitizer}__ macro)
      add_compile_definitions(${macro}=1)
    endif()
  endforeach()
endif()

# For programs whose own code runs once. What asan adds to code costs least where nothing optimizes it;
# what gcc's tsan adds does not.
if(TUTTI_QUICK_BUILD AND (TUTTI_SANITIZE MATCHES "address" OR
    (TUTTI_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")))
  set(TUTTI_RUNS_ONCE -O0)
else()
  set(TUTTI_RUNS_ONCE $<$<CONFIG:Release,RelWithDebInfo>:${TUTTI_O1}>)
endif()
function(tutti_runs_once target)
  target_compile_options(${target} PRIVATE ${TUTTI_RUNS_ONCE})
endfunction()
# For suites that run over and over, once for each backend.
function(tutti_runs_often target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:${TUTTI_O1}>)
endfunction()

# TUTTI_QUICK_BUILD takes half the compiler's work out of a build from nothing, in three ways. What
# it compiles is the same, but a change of one file costs more, and ccache and clang-tidy have no use
# for it.

# What nearly every file includes, read once for all of them: tutti_precompile(target [header...]).
# All targets of one type that ask for the same share what the first of them precompiled.
function(tutti_precompile target)
  # gcc 12 for aarch64 crashes on arm_sve.h behind a precompiled header.
  if(NOT TUTTI_QUICK_BUILD OR CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    return()
  endif()
  # gcc 12 forgets of precompiled headers that they are the system's, and warns of them.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds
    -Wno-stringop-overflow -Wno-stringop-overread>)
  get_target_property(type ${target} TYPE)
  list(JOIN ARGN "" headers)
  get_property(owner GLOBAL PROPERTY "tutti_precompiled_${type}_${headers}")
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
    return()
  endif()
  set_property(GLOBAL PROPERTY "tutti_precompiled_${type}_${headers}" ${target})
  target_precompile_headers(${target} PRIVATE <algorithm> <atomic> <chrono> <functional> <map>
    <memory> <mutex> <optional> <span> <string> <thread> <unordered_map> <vector> <fmt/format.h>
    ${ARGN})
endfunction()

# A target's sources, folder by folder or floor by floor, up to a dozen of them compiled as one: what they
# include is read once, what they share is instantiated once. Therefore the names in the unnamed namespaces
# of one folder, or of one floor, must differ.
function(tutti_together target)
  cmake_parse_arguments(ARG "BY_FLOOR" "" "" ${ARGN})
  if(NOT TUTTI_QUICK_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # gcc takes a source that is included for a header.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "[.]cc$")
  set(in_group 12)
  set(group 0)
  set(last_folder "")
  foreach(source ${sources})
    cmake_path(GET source PARENT_PATH folder)
    if(ARG_BY_FLOOR)
      cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(REGEX REPLACE "/.*" "" folder "${folder}")
    endif()
    if(in_group EQUAL 12 OR NOT folder STREQUAL last_folder)
      math(EXPR group "${group} + 1")
      set(in_group 0)
      set(last_folder "${folder}")
    endif()
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${group})
    math(EXPR in_group "${in_group} + 1")
  endforeach()
endfunction()

# A floor's sources: every .cc of the folder and of the folders below it, but for those named.
function(tutti_floor)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  foreach(folder ${ARGN})
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/${folder}/")
  endforeach()
  target_sources(tutti PRIVATE ${sources})
endfunction()

# <tutti/...> in the tree: a folder of links, with the same paths as the installed headers.
function(tutti_public_headers)
  set(TUTTI_INCLUDE_DIR ${PROJECT_BINARY_DIR}/include PARENT_SCOPE)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include/tutti)
  foreach(floor base tensor kernels collectives backends core adapters)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${floor} ${PROJECT_BINARY_DIR}/include/tutti/${floor}
      SYMBOLIC)
  endforeach()
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/core/tutti.h ${PROJECT_BINARY_DIR}/include/tutti/tutti.h
    SYMBOLIC)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/adapters/nn/nn.h ${PROJECT_BINARY_DIR}/include/tutti/nn.h
    SYMBOLIC)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/adapters/c/tutti.h ${PROJECT_BINARY_DIR}/include/tutti.h
    SYMBOLIC)
endfunction()

# tutti_backend_plugin(<name> PACKAGES <package>... LIBRARIES <target>...): the folder <name> becomes
# libtutti_backend_<name>.so beside libtutti.so, if all the packages are found (packages that CMake
# cannot find by itself: a Find module in cmake/). Else it is not built, and the output says so.
function(tutti_backend_plugin name)
  cmake_parse_arguments(ARG "" "" "PACKAGES;LIBRARIES" ${ARGN})
  foreach(package ${ARG_PACKAGES})
    find_package(${package} QUIET)
    if(NOT ${package}_FOUND)
      message(STATUS "Backend ${name}: not built, package ${package} was not found")
      return()
    endif()
  endforeach()
  message(STATUS "Backend ${name}: built as a plugin")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  set(target tutti_backend_${name})
  add_library(${target} MODULE ${sources})
  target_link_libraries(${target} PRIVATE tutti fmt::fmt ${ARG_LIBRARIES})
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  tutti_options(${target})
  tutti_wants_all(${target})
  tutti_together(${target})
  set_property(GLOBAL APPEND PROPERTY TUTTI_BACKEND_PLUGINS ${target})
  add_dependencies(tutti_backend_plugins ${target})
endfunction()

# The lines of cmake/public_headers.txt, paths in the source tree, that name this target; with "" those
# that name none.
function(tutti_listed_headers variable target)
  set(list ${PROJECT_SOURCE_DIR}/cmake/public_headers.txt)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
  file(STRINGS ${list} lines REGEX "^[a-z].*[.]h *${target}$")
  list(TRANSFORM lines REPLACE " .*" "")
  set(${variable} ${lines} PARENT_SCOPE)
endfunction()

# Makes the version script of `tutti` anew when a public header changes, and says where it is.
function(tutti_version_script variable)
  set(map ${PROJECT_BINARY_DIR}/libtutti.map)
  tutti_listed_headers(headers "")
  list(REMOVE_ITEM headers adapters/c/tutti.h) # has its own line
  set(script cmake/version_script.awk)
  list(APPEND headers cmake/libtutti.map.in)
  list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  add_custom_command(OUTPUT ${map}
    COMMAND awk -v out=${map} -f ${script} ${headers}
    DEPENDS ${files} ${PROJECT_SOURCE_DIR}/${script}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
  target_sources(tutti PRIVATE ${map})
  set(${variable} ${map} PARENT_SCOPE)
endfunction()

# The library twice, of the same objects: `tutti` is what is installed and exports what its version script
# (cmake/libtutti.map.in) lists; `tutti_everything` exports all, for tests. Both bear one name, so that a plugin finds itself
# served by whichever its program has. What links `tutti_here` gets the second one where
# TUTTI_LINKS_EVERYTHING is set, as it is for tests; so do the libraries between it and that program.
#
# Sanitizers ask for types that the map hides, and nobody installs what they look into: there it is one.
function(tutti_exports)
  define_property(TARGET PROPERTY TUTTI_LINKS_EVERYTHING
    INITIALIZE_FROM_VARIABLE TUTTI_LINKS_EVERYTHING)
  add_library(tutti_here INTERFACE)
  set(libraries tutti)
  if(NOT TUTTI_SANITIZE)
    tutti_everything()
    list(APPEND libraries tutti_everything)
  endif()
  foreach(library ${libraries})
    # Nobody replaces the library's own functions.
    target_link_options(${library} PRIVATE -Wl,-Bsymbolic-functions)
    set_target_properties(${library} PROPERTIES
      VERSION ${PROJECT_VERSION} SOVERSION ${TUTTI_SOVERSION})
  endforeach()
  if(TUTTI_SANITIZE)
    target_link_libraries(tutti_here INTERFACE tutti)
  else()
    target_link_libraries(tutti_here INTERFACE
      $<IF:$<BOOL:$<TARGET_PROPERTY:TUTTI_LINKS_EVERYTHING>>,tutti_everything,tutti>)
  endif()
endfunction()

function(tutti_everything)
  tutti_version_script(map)
  target_link_options(tutti PRIVATE -Wl,--version-script=${map})
  set_property(TARGET tutti APPEND PROPERTY LINK_DEPENDS ${map})

  add_library(tutti_everything SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:tutti>)
  set(folder ${PROJECT_BINARY_DIR}/everything)
  set_target_properties(tutti_everything PROPERTIES OUTPUT_NAME tutti LINKER_LANGUAGE CXX
    LIBRARY_OUTPUT_DIRECTORY ${folder})
  target_include_directories(tutti_everything PUBLIC ${TUTTI_INCLUDE_DIR})
  target_link_libraries(tutti_everything PUBLIC Threads::Threads
    PRIVATE $<TARGET_PROPERTY:tutti,LINK_LIBRARIES>)
  # Its plugins lie with the other's.
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK .. ${folder}/tutti-${TUTTI_SOVERSION} SYMBOLIC)
  tutti_options(tutti_everything)
endfunction()

# What is linked to the library at last must find all that it uses there; only sanitizers leave some
# of it to the program.
function(tutti_wants_all target)
  if(NOT TUTTI_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()

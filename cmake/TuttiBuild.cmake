# gcc compiles with -Og in two thirds of the time of -O1. With a sanitizer it takes half the time.
# For clang, -Og is the same as -O1.
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

# Compile options of this project's own code.
function(tutti_options target)
  # Highway compiles its loops for several vector widths. Quick sanitizer builds keep only the
  # narrowest and the usual one. Quick tsan builds keep only the narrowest, because threads behave
  # the same at every width.
  set(widths HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL)
  if(TUTTI_SANITIZE STREQUAL "thread")
    string(APPEND widths |HWY_AVX2)
  endif()
  # gcc 12 wrongly reports overlapping copies in std::string's operator+ (its bug 105651).
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${TUTTI_WERROR}>:-Werror>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  if(TUTTI_QUICK_BUILD)
    # Trades memory for time: the compiler collects garbage only after it has allocated a gigabyte.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>)
  endif()
  if(TUTTI_LESS_OPTIMIZED AND NOT TUTTI_SANITIZE)
    # This saves more compile time than any other option. `--full` tests the code that is shipped
    # and measured.
    target_compile_options(${target} PRIVATE
      $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<CONFIG:Release,RelWithDebInfo>>:-O1>)
  endif()
  if(TUTTI_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all -g1  # line numbers, for the reports
      $<$<BOOL:${TUTTI_QUICK_BUILD}>:${TUTTI_O1}>  # these builds are not measured
      "$<$<BOOL:${TUTTI_QUICK_BUILD}>:-DHWY_DISABLED_TARGETS=(${widths})>"
      # With instrumentation, gcc 12 no longer sees that std::regex initializes its data (its bug
      # 105562).
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    # The compiler already checks every format string in the release build.
    target_compile_definitions(${target} PRIVATE $<$<BOOL:${TUTTI_QUICK_BUILD}>:FMT_CONSTEVAL=>)
    if(TUTTI_QUICK_BUILD AND TUTTI_SANITIZE MATCHES "address,undefined")
      # asan also detects what these checks of ubsan detect.
      target_compile_options(${target} PRIVATE -fno-sanitize=null,object-size)
      if(NOT TUTTI_FULL_TESTS)
        # In daily tests the other checks only trap, and asan shows the location
        # (tools/dev/sanitize.sh). The code that describes each error in words would be a third of
        # all code and nearly all data.
        target_compile_options(${target} PRIVATE -fno-sanitize=vptr
          $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fsanitize-undefined-trap-on-error>)
        # The library's own code is checked for use after scope only in `--full`, because this check
        # takes a quarter of the compile time, and two thirds where Highway's loops are inlined.
        # Tests have the check every day.
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

# clang reports its sanitizers only through __has_feature. The code tests the macros of gcc, so they
# are defined here.
if(TUTTI_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  foreach(sanitizer address thread)
    if(TUTTI_SANITIZE MATCHES ${sanitizer})
      string(TOUPPER __SANITIZE_${sanitizer}__ macro)
      add_compile_definitions(${macro}=1)
    endif()
  endforeach()
endif()

# tutti_runs_once() is for programs whose own code runs once. asan's instrumentation compiles
# fastest without optimization. The instrumentation of gcc's tsan does not.
if(TUTTI_QUICK_BUILD AND (TUTTI_SANITIZE MATCHES "address" OR
    (TUTTI_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")))
  set(TUTTI_RUNS_ONCE -O0)
else()
  set(TUTTI_RUNS_ONCE $<$<CONFIG:Release,RelWithDebInfo>:${TUTTI_O1}>)
endif()
function(tutti_runs_once target)
  target_compile_options(${target} PRIVATE ${TUTTI_RUNS_ONCE})
endfunction()
# tutti_runs_often() is for suites that run many times, once for each backend.
function(tutti_runs_often target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:${TUTTI_O1}>)
endfunction()

# TUTTI_QUICK_BUILD halves the compiler's work in a build from scratch, in three ways. It compiles
# the same code. In return, a change of one file costs more, and ccache and clang-tidy cannot use
# such a build.

# tutti_precompile(target [header...]) precompiles the headers that nearly every file includes.
# Targets of one type with the same arguments share the header that the first of them precompiled.
function(tutti_precompile target)
  # gcc 12 for aarch64 crashes on arm_sve.h after a precompiled header.
  if(NOT TUTTI_QUICK_BUILD OR CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    return()
  endif()
  # gcc 12 no longer treats precompiled headers as system headers, so it warns about them.
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

# Compiles a target's sources in groups of up to a dozen, folder by folder or floor by floor. Each
# group is one source, so its headers are read once and its shared templates are instantiated once.
# Names in unnamed namespaces must therefore differ within a folder, or within a floor.
function(tutti_together target)
  cmake_parse_arguments(ARG "BY_FLOOR" "" "" ${ARGN})
  if(NOT TUTTI_QUICK_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # gcc mistakes an included source for a header, and would warn about it.
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

# Adds a floor's sources: every .cc of the folder and its subfolders, except the folders named.
function(tutti_floor)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  foreach(folder ${ARGN})
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/${folder}/")
  endforeach()
  target_sources(tutti PRIVATE ${sources})
endfunction()

# Makes <tutti/...> available in the build: a folder of links with the same paths as the installed
# headers.
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

# tutti_backend_plugin(<name> PACKAGES <package>... LIBRARIES <target>...): builds the folder <name>
# as libtutti_backend_<name>.so beside libtutti.so, if all the packages are found. Otherwise it only
# prints a message. Packages that CMake cannot find by itself have a Find module in cmake/.
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

# Returns the headers of cmake/public_headers.txt whose line names this target; "" returns those whose
# line names none.
function(tutti_listed_headers variable target)
  set(list ${PROJECT_SOURCE_DIR}/cmake/public_headers.txt)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
  file(STRINGS ${list} lines REGEX "^[a-z].*[.]h *${target}$")
  list(TRANSFORM lines REPLACE " .*" "")
  set(${variable} ${lines} PARENT_SCOPE)
endfunction()

# Makes the version script of `tutti` again when a public header changes, and returns its path.
function(tutti_version_script variable)
  set(map ${PROJECT_BINARY_DIR}/libtutti.map)
  tutti_listed_headers(headers "")
  list(REMOVE_ITEM headers adapters/c/tutti.h) # the C interface has its own line
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

# Makes two libraries from the same objects. `tutti` is installed and exports what its version script
# (cmake/libtutti.map.in) lists. `tutti_everything` exports all symbols, for tests. Both have the same
# file name, so a plugin is served by whichever library its program uses. Targets that link
# `tutti_here` get tutti_everything if TUTTI_LINKS_EVERYTHING is set, as in tests. A library that
# links tutti_here passes this choice on to its programs.
#
# With sanitizers there is only one library, because they need types that the map hides, and such a
# build is not installed.
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
    # No program replaces the library's own functions, so calls within the library are bound
    # directly.
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
  # The plugins of tutti_everything are in the same folder as those of `tutti`.
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK .. ${folder}/tutti-${TUTTI_SOVERSION} SYMBOLIC)
  tutti_options(tutti_everything)
endfunction()

# Makes the link fail if a symbol is undefined. Sanitizer builds are exempt, because the program
# provides some of their symbols.
function(tutti_wants_all target)
  if(NOT TUTTI_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()

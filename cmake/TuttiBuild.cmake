# Compile options of our own code.
function(tutti_options target)
  # gcc 12 sees overlapping copies in std::string's operator+ where there are none (its bug 105651).
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${TUTTI_WERROR}>:-Werror>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  if(TUTTI_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all
      # Instrumented, gcc 12 no longer sees what std::regex initializes (its bug 105562).
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_link_options(${target} PRIVATE -fsanitize=${TUTTI_SANITIZE})
  endif()
endfunction()

# A floor's sources: every .cc of the folder (and of the folders below it).
function(tutti_floor)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
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

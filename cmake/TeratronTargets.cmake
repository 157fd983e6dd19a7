# teratron_library(name [TORCH|BRIEF] SOURCES ... DEPENDS ...): one static library.
# TORCH libraries see ATen through one shared precompiled header; the others never include torch. BRIEF: what no step of
# training and no token waits for, such as commands and conversions; lightly optimised, which compiles a quarter faster.
find_package(GTest REQUIRED)

# Precompiled headers: what nearly every source includes, parsed once. g++ demands the same options of those who use one, so
# the others have theirs. Executables would get -fPIE, hence -fPIC.
file(WRITE ${CMAKE_BINARY_DIR}/pch/empty.cpp "")
set(plain_headers <algorithm> <chrono> <condition_variable> <cstdint> <filesystem> <fmt/format.h> <fmt/ranges.h>
                  <fstream> <functional> <map> <memory> <mutex> <nlohmann/json.hpp> <optional> <set> <span> <sstream>
                  <string> <string_view> <thread> <unordered_map> <vector>)
# Not <torch/csrc/autograd/custom_function.h>, which nn alone needs: its inline functions cost every source a second.
set(torch_headers <ATen/ATen.h> ${plain_headers})
set(plain_options $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
set(torch_options "$<$<COMPILE_LANGUAGE:CXX>:-Wno-unused-parameter;-fPIC>")
# What is tested is optimised; the tests themselves compile a quarter faster so.
set(light_options $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)

# teratron_pch(name torch|plain headers...)
function(teratron_pch name kind)
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/pch/empty.cpp)
  target_compile_options(${name} PRIVATE ${${kind}_options})
  target_precompile_headers(${name} PRIVATE ${${kind}_headers} ${ARGN})
endfunction()
teratron_pch(teratron_pch torch)
teratron_pch(teratron_library_pch plain)
teratron_pch(teratron_brief_pch plain)
target_compile_options(teratron_brief_pch PRIVATE ${light_options})
teratron_pch(teratron_torch_test_pch torch <gtest/gtest.h>)
teratron_pch(teratron_test_pch plain <gtest/gtest.h>)
foreach(name teratron_pch teratron_torch_test_pch)
  target_link_libraries(${name} PUBLIC teratron_libtorch)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
endforeach()
foreach(name teratron_torch_test_pch teratron_test_pch)
  target_link_libraries(${name} PRIVATE GTest::gtest)
  target_compile_options(${name} PRIVATE ${light_options})
endforeach()

# teratron_use_pch(target torch|plain pch): compiles the target with the options that this header has.
function(teratron_use_pch target kind pch)
  target_compile_options(${target} PRIVATE ${${kind}_options})
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

function(teratron_use_torch target)
  target_link_libraries(${target} PUBLIC teratron_libtorch)
  teratron_use_pch(${target} torch teratron_pch)
endfunction()

# Where programs of the build find libteratron_mpi.so, which is loaded by name.
set(CMAKE_BUILD_RPATH ${CMAKE_BINARY_DIR}/teratron/comm)

# teratron_unity(target count): so many sources are compiled as one.
function(teratron_unity target count)
  if(TERATRON_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${count})
  endif()
endfunction()

# teratron_cuda_unit(list name file.cu...): adds the files to the list, as one source, since each costs two seconds of
# headers (CMake joins only C++ itself).
function(teratron_cuda_unit list name)
  if(TERATRON_UNITY)
    list(TRANSFORM ARGN REPLACE "(.+)" "#include \"${CMAKE_CURRENT_SOURCE_DIR}/\\1\"\n" OUTPUT_VARIABLE includes)
    list(JOIN includes "" includes)
    file(CONFIGURE OUTPUT ${name}_unit.cu CONTENT "${includes}" @ONLY)
    set(ARGN ${CMAKE_CURRENT_BINARY_DIR}/${name}_unit.cu)
  endif()
  set(${list} ${${list}} ${ARGN} PARENT_SCOPE)
endfunction()

function(teratron_library name)
  cmake_parse_arguments(LIB "TORCH;BRIEF" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${LIB_SOURCES})
  set_property(GLOBAL APPEND PROPERTY TERATRON_LIBRARIES ${name})
  teratron_unity(${name} 16)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${LIB_DEPENDS} Threads::Threads)
  if(LIB_TORCH)
    teratron_use_torch(${name})
  elseif(LIB_BRIEF)
    target_compile_options(${name} PRIVATE ${light_options})
    teratron_use_pch(${name} plain teratron_brief_pch)
  else()
    teratron_use_pch(${name} plain teratron_library_pch)
  endif()
endfunction()

# teratron_proto(name file.proto): the classes of a protocol buffer, as a library.
# Static and not re-exported: another library of the process may contain a different protobuf.
find_package(Protobuf REQUIRED)
find_library(PROTOBUF_LITE_STATIC libprotobuf-lite.a REQUIRED)
function(teratron_proto name proto)
  protobuf_generate_cpp(sources headers ${proto})
  add_library(${name} STATIC ${sources} ${headers})
  target_include_directories(${name} SYSTEM PUBLIC ${CMAKE_CURRENT_BINARY_DIR} ${Protobuf_INCLUDE_DIRS})
  target_link_libraries(${name} PUBLIC ${PROTOBUF_LITE_STATIC} Threads::Threads)
  target_link_options(${name} INTERFACE -Wl,--exclude-libs,libprotobuf-lite.a)
endfunction()

# teratron_page(symbol page.html [page.js ...]): SYMBOL.cpp with the page as a string, which is one file: {{style}} and
# {{shared}} in it are the stylesheet and the script of all pages, {{script}} is its own scripts.
set(page_folder ${CMAKE_SOURCE_DIR}/teratron/telemetry/page)
function(teratron_page symbol page)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page} ${page_folder}/page.css ${page_folder}/page.js)
  file(READ ${page} content)
  file(READ ${page_folder}/page.css style)
  file(READ ${page_folder}/page.js shared)
  string(REPLACE "{{style}}" "${style}" content "${content}")
  string(REPLACE "{{shared}}" "${shared}" content "${content}")
  set(scripts)
  foreach(script ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script})
    file(READ ${script} own)
    string(APPEND scripts "${own}")
  endforeach()
  string(REPLACE "{{script}}" "${scripts}" content "${content}")
  file(CONFIGURE OUTPUT ${symbol}.cpp @ONLY CONTENT "namespace teratron {
extern const char* const @symbol@;
const char* const @symbol@ = R\"html(@content@)html\";
}
")
endfunction()

# teratron_test(name [TORCH] [SHARDS n] [ENVIRONMENT NAME=value ...] SOURCES ... DEPENDS ...): one GoogleTest binary per
# layer. CTest runs it as a whole or, if it takes more than a minute, in n parts, so that cores are used evenly.
function(teratron_test name)
  cmake_parse_arguments(T "TORCH" "SHARDS" "ENVIRONMENT;SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  teratron_unity(${name} 8)  # more tests would use the same short names
  target_link_libraries(${name} PRIVATE ${T_DEPENDS} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE TERATRON_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${light_options})
  if(T_TORCH)
    target_link_libraries(${name} PUBLIC teratron_libtorch)
    teratron_use_pch(${name} torch teratron_torch_test_pch)
  else()
    teratron_use_pch(${name} plain teratron_test_pch)
  endif()
  # A minute takes many under a sanitizer.
  if(T_SHARDS)
    foreach(shard RANGE 1 ${T_SHARDS})
      math(EXPR index "${shard} - 1")
      set(part ${name}_${shard}_of_${T_SHARDS})
      add_test(NAME ${part} COMMAND ${name})
      set_tests_properties(${part} PROPERTIES TIMEOUT 1800
                           ENVIRONMENT "GTEST_TOTAL_SHARDS=${T_SHARDS};GTEST_SHARD_INDEX=${index};${T_ENVIRONMENT}")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 1800 ENVIRONMENT "${T_ENVIRONMENT}")
  endif()
endfunction()

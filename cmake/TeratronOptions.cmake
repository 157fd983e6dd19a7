set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g -D_GLIBCXX_ASSERTIONS")

# Every source that includes ATen spends about 4 s on instantiating its templates, however small it is.
option(TERATRON_UNITY "Compile several sources of a target as one: faster from nothing, slower after a change" ON)

set(TERATRON_SANITIZE "" CACHE STRING "sanitizers of the build, as -fsanitize= takes them")
if(TERATRON_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TERATRON_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${TERATRON_SANITIZE})
endif()

# Newer versions of g++ warn about more, at times wrongly: that must not stop a user's build.
set(warnings_are_errors ON)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  set(warnings_are_errors OFF)
endif()
option(TERATRON_WERROR "Warnings are errors" ${warnings_are_errors})
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TERATRON_WERROR}>>:-Werror>
                    # Designated initialisers name what they set; the rest is meant to keep its default.
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>
                    # libstdc++ 12's stable_sort calls a function that it declares deprecated.
                    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-march=${TERATRON_MARCH}>)
endif()
# With comparison by <=>, nlohmann::json accepts "string == json" up to g++ 12 alone.
add_compile_definitions(JSON_HAS_THREE_WAY_COMPARISON=0)
# The shared library, not the header-only variant, which costs every source 5 s more to compile; a package brings it along.
find_package(fmt REQUIRED)
link_libraries(fmt::fmt)

find_program(CCACHE ccache)
if(CCACHE)
  # Depend mode: preprocessing ATen's headers a second time would cost more than a hit saves.
  set(launcher env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()
find_package(Threads REQUIRED)

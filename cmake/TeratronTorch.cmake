# libtorch out of the PyPI wheel, linked directly (find_package(Torch) would demand a full CUDA toolkit).
# -idirafter: the wheel carries its own fmt and protobuf, which must not hide the system's.
if(NOT TERATRON_TORCH)
  file(GLOB candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages)
  list(GET candidates 0 TERATRON_TORCH)
endif()
if(NOT EXISTS ${TERATRON_TORCH}/torch/lib/libtorch.so)
  message(FATAL_ERROR "torch 2.11 not found in '${TERATRON_TORCH}'. Run ./run build, which installs it, "
                      "or pass -DTERATRON_TORCH=<site-packages>.")
endif()

add_library(teratron_libtorch INTERFACE)
set(nvidia ${TERATRON_TORCH}/nvidia)
foreach(dir torch/include torch/include/torch/csrc/api/include nvidia/cu13/include nvidia/nccl/include
            nvidia/cudnn/include)
  target_compile_options(teratron_libtorch INTERFACE
                         "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${TERATRON_TORCH}/${dir}>")
endforeach()
# libstdc++ first: libtorch.so exports std::filesystem functions of an older one, some of which jump to null.
target_link_libraries(teratron_libtorch INTERFACE -Wl,--push-state,--no-as-needed stdc++ -Wl,--pop-state
  ${TERATRON_TORCH}/torch/lib/libtorch.so ${TERATRON_TORCH}/torch/lib/libtorch_cpu.so
  ${TERATRON_TORCH}/torch/lib/libc10.so)
# kernels/common/cuda_libraries.cpp stands in for the functions of CUDA's libraries, and loads them where there is a
# driver: a program needs them at its start only for a function that is missing there.
if(EXISTS ${TERATRON_TORCH}/torch/lib/libtorch_cuda.so)
  target_link_libraries(teratron_libtorch INTERFACE
    -Wl,--push-state,--as-needed ${nvidia}/cu13/lib/libcudart.so.13
    ${TERATRON_TORCH}/torch/lib/libtorch_cuda.so ${TERATRON_TORCH}/torch/lib/libc10_cuda.so
    ${nvidia}/cu13/lib/libcublasLt.so.13 ${nvidia}/nccl/lib/libnccl.so.2 ${nvidia}/cudnn/lib/libcudnn.so.9
    -Wl,--pop-state ${CMAKE_DL_LIBS})
endif()
# at::parallel_for is a plain loop without OpenMP; with it, it shares libtorch's threads. ThreadSanitizer sees races in them.
if(NOT TERATRON_SANITIZE MATCHES thread)
  file(GLOB openmp ${TERATRON_TORCH}/torch/lib/libgomp*.so*)
  if(NOT openmp)
    set(openmp gomp)
  endif()
  target_compile_options(teratron_libtorch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  target_link_libraries(teratron_libtorch INTERFACE ${openmp})
endif()
target_link_options(teratron_libtorch INTERFACE
  -Wl,-rpath,${TERATRON_TORCH}/torch/lib:${nvidia}/cu13/lib:${nvidia}/nccl/lib:${nvidia}/cudnn/lib)

# cuDNN's graph API in C++: headers only, from a separate wheel. They define all of it, which takes half a minute to compile;
# -O1, for which g++ refuses the precompiled header, saves a third.
function(teratron_use_cudnn_frontend source)
  if(NOT EXISTS ${TERATRON_TORCH}/include/cudnn_frontend.h)
    message(FATAL_ERROR "nvidia-cudnn-frontend not found in '${TERATRON_TORCH}'. Run ./run build, which installs it, "
                        "or install the version in requirements.txt there.")
  endif()
  set_source_files_properties(${source} PROPERTIES
    COMPILE_OPTIONS "-idirafter;${TERATRON_TORCH}/include;$<$<CONFIG:Release>:-O1>"
    COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# Writes the headers that kernels include as string literals: OUT from FOLDER, the root of the sources.
set(own kernels/bfloat16.h kernels/float16.h kernels/float8.h kernels/philox.h kernels/pointwise.h kernels/pointwise_math.h kernels/pointwise_special.h
  kernels/cuda/attention.h kernels/cuda/attention_tensor.h kernels/cuda/attention_tensor_grad.h kernels/cuda/device.h kernels/cuda/fault.h
  kernels/cuda/float8.h  kernels/cuda/tensor_core.h)
set(text "#include \"cuda/compile.h\"\n\nnamespace tessera::cuda {\n\nconst Header kHeaders[] = {\n")
set(count 1)
foreach(name ${own} cstdint type_traits limits cmath)
  set(path ${FOLDER}/${name})
  if(NOT EXISTS ${path})
    set(path ${FOLDER}/src/cuda/nvrtc/${name})
  endif()
  file(READ ${path} content)
  string(APPEND text "{\"${name}\", R\"tessera(${content})tessera\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
string(APPEND text "{\"math.h\", \"\"}};\nconst int kHeaderCount = ${count};\n\n}  // namespace tessera::cuda\n")
file(WRITE ${OUT} "${text}")

# Writes the headers that kernels include as string literals: OUT from FOLDER, the root of the sources.
set(own base/bfloat16.h base/float16.h base/float8.h
  program/pointwise_table.inc kernels/common/philox.h kernels/common/pointwise.h kernels/common/pointwise_math.h kernels/common/pointwise_special.h
  program/attention_mask.h kernels/common/segments.h kernels/cuda/segment_spans.h
  kernels/cuda/attention.h kernels/cuda/attention_tensor.h kernels/cuda/attention_tensor_grad.h kernels/cuda/device.h kernels/cuda/fault.h kernels/cuda/ordered_sum.h
  kernels/cuda/float8.h  kernels/cuda/tensor_core.h)
set(text "#include \"gpu/library/nvrtc.h\"\n\nnamespace tessera::cuda {\n\nconst Header kHeaders[] = {\n")
set(count 1)
foreach(name ${own} cstdint type_traits limits cmath)
  foreach(folder src/gpu/library/nvrtc_headers src .)
    if(EXISTS ${FOLDER}/${folder}/${name} AND NOT IS_DIRECTORY ${FOLDER}/${folder}/${name})
      set(path ${FOLDER}/${folder}/${name})
    endif()
  endforeach()
  file(READ ${path} content)
  string(APPEND text "{\"${name}\", R\"tessera(${content})tessera\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
string(APPEND text "{\"math.h\", \"\"}};\nconst int kHeaderCount = ${count};\n\n}  // namespace tessera::cuda\n")
file(WRITE ${OUT} "${text}")

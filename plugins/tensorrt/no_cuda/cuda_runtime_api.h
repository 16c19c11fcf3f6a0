// The two CUDA types that TensorRT's headers mention, for machines without the CUDA toolkit: pointers to
// types that nobody outside CUDA looks into. The plugin calls the CUDA driver alone, see plugins/cuda.
#pragma once

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

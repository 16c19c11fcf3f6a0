// A CUDA runtime that finds no device: what plugins/examples calls, as no_cuda declares it.

#include <cuda_runtime_api.h>

static const cudaError_t kNoDevice = (cudaError_t)100;

cudaError_t cudaMalloc(void** memory, size_t bytes) { return *memory = 0, (void)bytes, kNoDevice; }
cudaError_t cudaFree(void* memory) { return memory ? kNoDevice : cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return (void)to, (void)from, (void)bytes, (void)kind, (void)stream, kNoDevice;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = 0, kNoDevice; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return stream ? kNoDevice : cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return (void)stream, kNoDevice; }

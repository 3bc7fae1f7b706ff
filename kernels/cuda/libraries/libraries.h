#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::cuda {

#define TUTTI_CUBLASLT_FUNCTIONS(X)       \
  X(cublasLtGetVersion)                   \
  X(cublasLtGetStatusString)              \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmul)
#define TUTTI_CUDNN_FUNCTIONS(X)   \
  X(cudnnGetVersion)               \
  X(cudnnGetErrorString)           \
  X(cudnnGetLastErrorString)       \
  X(cudnnCreate)                   \
  X(cudnnDestroy)                  \
  X(cudnnSetStream)                \
  X(cudnnBackendCreateDescriptor)  \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendSetAttribute)      \
  X(cudnnBackendGetAttribute)      \
  X(cudnnBackendFinalize)          \
  X(cudnnBackendExecute)

// A member cannot stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define TUTTI_LIBRARY_FIELD(name) decltype(&::name) name = nullptr;
/// What we use of cuBLASLt. Nothing is linked to it: it is loaded when a model first needs it.
struct CublasLt {
  TUTTI_CUBLASLT_FUNCTIONS(TUTTI_LIBRARY_FIELD)
  /// Throws Error(internal) with the library's words for anything but success.
  void check(cublasStatus_t status, std::string_view what) const;
};
/// What we use of cuDNN: the backend API alone, which is a dozen functions over descriptors.
struct Cudnn {
  TUTTI_CUDNN_FUNCTIONS(TUTTI_LIBRARY_FIELD)
  void check(cudnnStatus_t status, std::string_view what) const;
};
#undef TUTTI_LIBRARY_FIELD
// NOLINTEND(bugprone-macro-parentheses)

/// Each loads the library as it is on this machine, for good: `file` as for dlopen, empty for the
/// name of the major version that this plugin was built with, which a process that runs PyTorch has
/// loaded already. Throws Error(unavailable) where there is none, Error(version) for another one.
CublasLt load_cublaslt(const std::string& file = {});
Cudnn load_cudnn(const std::string& file = {});

/// Throws Error(version) unless both are of one major version; `version` as the library tells it.
void require_cublaslt(const std::string& name, size_t version);
void require_cudnn(const std::string& name, size_t version);

}  // namespace tutti::cuda

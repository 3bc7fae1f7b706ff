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

// A member cannot be put in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define TUTTI_LIBRARY_FIELD(name) decltype(&::name) name = nullptr;
/// The functions of cuBLASLt that are used. The library is not linked: it is loaded when a model
/// first needs it.
struct CublasLt {
  TUTTI_CUBLASLT_FUNCTIONS(TUTTI_LIBRARY_FIELD)
  /// Throws Error(internal) with the library's text unless `status` is success.
  void check(cublasStatus_t status, std::string_view what) const;
};
/// The functions of cuDNN that are used: only the backend API, a dozen functions over descriptors.
struct Cudnn {
  TUTTI_CUDNN_FUNCTIONS(TUTTI_LIBRARY_FIELD)
  void check(cudnnStatus_t status, std::string_view what) const;
};
#undef TUTTI_LIBRARY_FIELD
// NOLINTEND(bugprone-macro-parentheses)

/// Load a library for the life of the process. `file` is as for dlopen(). If `file` is empty, the
/// library of the major version that this plugin was built with is loaded by its name. (A process
/// that runs PyTorch has already loaded that library.) Throw Error(unavailable) if there is no such
/// library, and Error(version) if it has another major version.
CublasLt load_cublaslt(const std::string& file = {});
Cudnn load_cudnn(const std::string& file = {});

/// Throws Error(version) unless the library has the major version that this plugin was built with.
/// `version` is the number that the library reports.
void require_cublaslt(const std::string& name, size_t version);
void require_cudnn(const std::string& name, size_t version);

}  // namespace tutti::cuda

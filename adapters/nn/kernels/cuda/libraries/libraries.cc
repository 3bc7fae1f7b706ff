#include "tutti/adapters/nn/kernels/cuda/libraries/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

#include "tutti/base/error.h"

namespace tutti::cuda {

namespace {

constexpr const char* kNameOfCublasLt = "libcublasLt.so.13";
constexpr const char* kNameOfCudnn = "libcudnn.so.9";
static_assert(CUBLAS_VER_MAJOR == 13 && CUDNN_MAJOR == 9, "the names above say which");

void* open_library(std::string_view noun, const std::string& name, std::string_view package) {
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle != nullptr) return handle;
  const char* why = ::dlerror();
  throw Error(ErrorCode::unavailable,
              fmt::format("{} cannot be loaded ({}); install {}, or put its folder into "
                          "LD_LIBRARY_PATH (PyTorch brings it along), or keep the model on the cpu",
                          noun, why ? why : "no reason given", package));
}

// Sets `function` to the library's symbol. Throws if the library lacks it.
template <class Function>
void find_symbol(void* handle, const std::string& name, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, symbol));
  if (function == nullptr)
    throw Error(ErrorCode::unavailable,
                fmt::format("{} has no {}; install it again", name, symbol));
}

void require_major(std::string_view noun, const std::string& name, size_t major, size_t wanted) {
  if (major != wanted)
    throw Error(ErrorCode::version,
                fmt::format("{} is {} {}, but layers were built for {} {}; install that one, "
                            "or build Tutti with the headers of the other",
                            name, noun, major, noun, wanted));
}

}  // namespace

void CublasLt::check(cublasStatus_t status, std::string_view what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::internal, fmt::format("cuBLASLt cannot {}: {}; see nvidia-smi and the "
                                               "system's log",
                                               what, cublasLtGetStatusString(status)));
}

void Cudnn::check(cudnnStatus_t status, std::string_view what) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char words[512] = {};
  cudnnGetLastErrorString(words, sizeof words);
  throw Error(ErrorCode::internal,
              fmt::format("cuDNN cannot {}: {} ({}); CUDNN_LOGLEVEL_DBG=1 says more", what,
                          cudnnGetErrorString(status), words));
}

void require_cublaslt(const std::string& name, size_t version) {
  require_major("cuBLASLt", name, version / 10'000, CUBLAS_VER_MAJOR);
}
void require_cudnn(const std::string& name, size_t version) {
  require_major("cuDNN", name, version / 10'000, CUDNN_MAJOR);
}

CublasLt load_cublaslt(const std::string& file) {
  const std::string name = file.empty() ? kNameOfCublasLt : file;
  void* const handle = open_library("cuBLASLt", name, "CUDA's libcublas");
  CublasLt library;
  find_symbol(handle, name, "cublasLtGetVersion", library.cublasLtGetVersion);
  require_cublaslt(name, library.cublasLtGetVersion());
#define TUTTI_FIND(symbol) find_symbol(handle, name, #symbol, library.symbol);
  TUTTI_CUBLASLT_FUNCTIONS(TUTTI_FIND)
#undef TUTTI_FIND
  return library;
}

Cudnn load_cudnn(const std::string& file) {
  const std::string name = file.empty() ? kNameOfCudnn : file;
  void* const handle = open_library("cuDNN", name, "cuDNN 9");
  Cudnn library;
  find_symbol(handle, name, "cudnnGetVersion", library.cudnnGetVersion);
  require_cudnn(name, library.cudnnGetVersion());
#define TUTTI_FIND(symbol) find_symbol(handle, name, #symbol, library.symbol);
  TUTTI_CUDNN_FUNCTIONS(TUTTI_FIND)
#undef TUTTI_FIND
  return library;
}

}  // namespace tutti::cuda

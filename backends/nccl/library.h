#pragma once

#include <nccl.h>

#include <string>

#include "tutti/base/error.h"

namespace tutti {

// The functions of NCCL that we use. The functions of the second list do not exist in the oldest
// version that we accept.
#define TUTTI_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion)             \
  X(ncclGetUniqueId)            \
  X(ncclGetErrorString)         \
  X(ncclGetLastError)           \
  X(ncclCommInitRankConfig)     \
  X(ncclCommSplit)              \
  X(ncclCommFinalize)           \
  X(ncclCommDestroy)            \
  X(ncclCommAbort)              \
  X(ncclCommGetAsyncError)      \
  X(ncclGroupStart)             \
  X(ncclGroupEnd)               \
  X(ncclAllReduce)              \
  X(ncclReduce)                 \
  X(ncclReduceScatter)          \
  X(ncclAllGather)              \
  X(ncclBroadcast)              \
  X(ncclSend)                   \
  X(ncclRecv)                   \
  X(ncclRedOpCreatePreMulSum)
#define TUTTI_NCCL_LATER_FUNCTIONS(X) \
  X(ncclMemAlloc)                     \
  X(ncclMemFree)                      \
  X(ncclCommRegister)                 \
  X(ncclCommDeregister)

/// Returns text such as "2.18.5".
std::string text_of_version(int version);

/// The NCCL that is installed on this machine. It is loaded at run time, so nothing links to it. It
/// is never unloaded, because its threads outlive its communicators.
struct NcclLibrary {
  static constexpr int kOldest = NCCL_VERSION(2, 18, 0);
  static constexpr int kRegisters = NCCL_VERSION(2, 19, 0);

  /// Loads NCCL from `file`, a name for dlopen; empty: libnccl.so.2. Throws Error(unavailable |
  /// version).
  static NcclLibrary load(const std::string& file);
  std::string version_text() const;
  /// Returns the text of an error ("unhandled system error: ..."), followed by NCCL's last error if
  /// there is one.
  std::string describe(ncclResult_t result, ncclComm_t comm = nullptr) const;

  int version = 0;
// A member's name cannot be in parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define TUTTI_NCCL_FIELD(name) decltype(&::name) name = nullptr;
  TUTTI_NCCL_FUNCTIONS(TUTTI_NCCL_FIELD)
  TUTTI_NCCL_LATER_FUNCTIONS(TUTTI_NCCL_FIELD)
#undef TUTTI_NCCL_FIELD
};

}  // namespace tutti

#pragma once

#include <nccl.h>

#include <string>

#include "tutti/base/error.h"

namespace tutti {

// What we use of NCCL. Those of the second list came after the oldest version that we take.
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

/// "2.18.5"
std::string text_of_version(int version);

/// NCCL as it is on this machine, found when it is asked for: nothing is linked to it. Never
/// closed, because its threads outlive its communicators.
struct NcclLibrary {
  static constexpr int kOldest = NCCL_VERSION(2, 18, 0);
  static constexpr int kRegisters = NCCL_VERSION(2, 19, 0);

  /// `file` as for dlopen; empty: libnccl.so.2. Throws Error(unavailable | version).
  static NcclLibrary load(const std::string& file);
  std::string version_text() const;
  /// "unhandled system error: ..." with what NCCL says of it, if `comm` is given.
  std::string describe(ncclResult_t result, ncclComm_t comm = nullptr) const;

  int version = 0;
// A member cannot stand in parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define TUTTI_NCCL_FIELD(name) decltype(&::name) name = nullptr;
  TUTTI_NCCL_FUNCTIONS(TUTTI_NCCL_FIELD)
  TUTTI_NCCL_LATER_FUNCTIONS(TUTTI_NCCL_FIELD)
#undef TUTTI_NCCL_FIELD
};

}  // namespace tutti

// Runs over tcp, but every operation fails on rank 0 immediately. This imitates a peer that
// withdraws data which rank 0 reads: another rank reports the cause later, or never.

#include "tests/backends/support/forwarding_backend.h"

namespace tutti {
namespace {

class Failed final : public Operation {
 public:
  OperationState advance() override { return OperationState::failed; }
  void cancel() override {}
};

class FailsFirst final : public test::ForwardingBackend {
 public:
  explicit FailsFirst(const Context& context)
      : ForwardingBackend(find_backend("tcp").connect(context)), rank_(context.rank) {}
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    if (rank_ == 0) return OperationPtr(new Failed);
    return ForwardingBackend::start(collective, launch);
  }

 private:
  const int rank_;
};

}  // namespace

const BackendPlugin tutti_backend_plugin = {
    .name = "fails_first",
    .connect = [](const Context& context) -> std::unique_ptr<Backend> {
      return std::make_unique<FailsFirst>(context);
    },
};

}  // namespace tutti

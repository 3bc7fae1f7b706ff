// Over memory, but what rank 0 takes part in fails there at once, as where a peer takes back what
// rank 0 reads: the cause, which another rank tells, comes later or never.

#include "tutti/backends/backend.h"

namespace tutti {
namespace {

class Failed final : public Operation {
 public:
  OperationState advance() override { return OperationState::failed; }
  void cancel() override {}
};

class FailsFirst final : public Backend {
 public:
  explicit FailsFirst(const Context& context)
      : rest_(find_backend("memory").connect(context)), rank_(context.rank) {}
  bool progress() override { return rest_->progress(); }
  bool arm() override { return rest_->arm(); }
  int descriptor() const override { return rest_->descriptor(); }
  void abort(const Error& error) noexcept override { rest_->abort(error); }
  Capabilities capabilities() const override { return rest_->capabilities(); }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    return rest_->allocate(bytes, device);
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    if (rank_ == 0) return OperationPtr(new Failed);
    return rest_->start(collective, launch);
  }
  std::string_view algorithm(const Collective& collective) const override {
    return rest_->algorithm(collective);
  }
  Transport* transport() override { return rest_->transport(); }

 private:
  const std::unique_ptr<Backend> rest_;
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

#include <fmt/format.h>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/base/error.h"

namespace tutti::nn {

namespace {

class Residual final : public Layer {
 public:
  Residual(std::unique_ptr<Layer> body, std::unique_ptr<Layer> shortcut)
      : body_(std::move(body)),
        shortcut_(shortcut ? std::move(shortcut) : std::make_unique<Chain>()) {}
  std::string kind() const override { return fmt::format("residual({})", body_->kind()); }
  void attach(const std::string& path) override {
    set_path(path);
    body_->attach(path);
    shortcut_->attach(path + ".shortcut");
  }
  void initialize(uint64_t seed) override {
    body_->initialize(seed);
    shortcut_->initialize(seed);
  }
  std::vector<Parameter*> parameters() override { return joined(&Layer::parameters); }
  std::vector<NamedState*> buffers() override { return joined(&Layer::buffers); }

  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    context.inner.resize(2);
    const auto body = body_->forward(pass, input, context.inner[0]);
    const auto shortcut = shortcut_->forward(pass, input, context.inner[1]);
    if (body.shape() != shortcut.shape())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("layer {}: the body put out {}, its shortcut {}; give the shortcut "
                              "layers that make them equal",
                              path(), body.shape().to_string(), shortcut.shape().to_string()));
    return sum(pass, shortcut, body);
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    const auto body = body_->backward(pass, context.inner[0], gradient, wanted);
    const auto shortcut = shortcut_->backward(pass, context.inner[1], gradient, wanted);
    if (!wanted.input) return {};
    // An empty shortcut returns the same gradient tensor, which another layer may hold too, so the
    // sum needs memory of its own.
    return sum(pass, shortcut, body);
  }

 private:
  static Tensor sum(const Pass& pass, const Tensor& a, const Tensor& b) {
    Tensor output = pass.kernels.make_tensor(a.shape(), a.dtype());
    pass.kernels.cast_to(a, output);
    pass.kernels.add(b, output);
    return output;
  }
  template <class T>
  std::vector<T*> joined(std::vector<T*> (Layer::*member)()) {
    auto all = ((*body_).*member)();
    const auto more = ((*shortcut_).*member)();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const std::unique_ptr<Layer> body_, shortcut_;
};

}  // namespace

std::unique_ptr<Layer> residual(std::unique_ptr<Layer> body, std::unique_ptr<Layer> shortcut) {
  return std::make_unique<Residual>(std::move(body), std::move(shortcut));
}

}  // namespace tutti::nn

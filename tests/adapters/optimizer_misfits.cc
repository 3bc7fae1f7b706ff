// Optimizers that almost meet the requirements, one for each CASE. Each must fail to compile with
// the text beside it. Otherwise the library would treat it as an optimizer without that function
// and train wrongly without an error. CASE 0 meets the requirements.

#include <optional>

#include "tutti/adapters/distributed.h"

struct Weight {
  std::string name;
  tutti::Tensor value, gradient;
};
struct Moment {
  std::string name;
  tutti::Tensor tensor;
};

struct Descent {
  std::vector<Weight> parameters();
  void step();
#if CASE == 1  // want: state() must be callable without arguments and yield items with a name
  // The tensor has another name.
  struct Other {
    std::string name;
    tutti::Tensor value;
  };
  std::vector<Other> state();
#elif CASE == 2   // want: state() must be callable without arguments and yield items with a name
  // This is not a function.
  std::vector<Moment> state;
#elif CASE == 3   // want: state() must be callable without arguments and yield items with a name
  std::vector<Moment> state(int which);
#elif CASE == 4   // want: state() must be callable without arguments and yield items with a name
  // The item owns its memory, which is freed with the item.
  struct Owner {
    std::string name;
    std::vector<float> tensor;
  };
  std::vector<Owner> state();
#elif CASE == 5   // want: state() must be callable without arguments and yield items with a name
  std::vector<Moment*> state();
#elif CASE == 6   // want: on_gradient_ready() must be a function that takes a
  std::function<void(std::string_view)> on_gradient_ready;
#elif CASE == 7   // want: on_gradient_ready() must be a function that takes a
  void on_gradient_ready(std::function<void(int)> callback);
#elif CASE == 8   // want: learning_rate() must return a number
  std::optional<double> learning_rate() const;
#elif CASE == 9   // want: must have both reduce_gradient
  void reduce_gradient(std::string_view name, const tutti::ReduceOptions& options);
#elif CASE == 10  // want: must have both reduce_gradient
  void reduce_gradient(int index);
  void wait_for_gradients();
#elif CASE == 0
  // All return by value or are not constant.
  std::vector<Moment> state();
  void on_gradient_ready(std::function<void(std::string_view)> callback);
  double learning_rate();
  void reduce_gradient(std::string_view name, const tutti::ReduceOptions& options);
  void wait_for_gradients();
#endif
};

#if CASE == 0
static_assert(tutti::HasState<Descent> && tutti::AnnouncesGradients<Descent> &&
              tutti::HasLearningRate<Descent> && tutti::ReducesGradients<Descent>);
#endif

void use(tutti::Communicator& comm, Descent& descent) {
  auto optimizer = tutti::distributed(comm, descent);
  optimizer.step();
}

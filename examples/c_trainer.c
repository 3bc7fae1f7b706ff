/* Linear regression in C on several ranks. Each rank computes the gradient of its share of the
 * samples, and tutti averages the gradients. */

#include <math.h>
#include <stdio.h>
#include <tutti.h>

enum { kFeatures = 4, kSamples = 1024, kSteps = 200 };

static const double kTruth[kFeatures + 1] = {1.5, -2.0, 0.25, 3.0, 0.5}; /* the last is the bias */

static void make_sample(int number, double* x, double* y) {
  *y = kTruth[kFeatures];
  for (int i = 0; i < kFeatures; ++i) {
    x[i] = sin((12.9898 + i) * number);
    *y += kTruth[i] * x[i];
  }
}

static int failed(tutti_comm_t comm) {
  fprintf(stderr, "c_trainer: %s\n", tutti_last_error());
  tutti_destroy(comm);
  return 1;
}

int main(void) {
  tutti_comm_t comm;
  if (tutti_create(&comm) != TUTTI_OK) return failed(NULL);
  const int rank = tutti_rank(comm), size = tutti_size(comm);

  double weights[kFeatures + 1] = {0}, gradient[kFeatures + 1];
  tutti_tensor_t gradient_tensor = tutti_vector(gradient, kFeatures + 1, TUTTI_F64);
  for (int step = 0; step < kSteps; ++step) {
    int samples = 0;
    for (int i = 0; i <= kFeatures; ++i) gradient[i] = 0;
    for (int n = rank; n < kSamples; n += size, ++samples) {
      double x[kFeatures], y;
      make_sample(n, x, &y);
      double error = weights[kFeatures] - y;
      for (int i = 0; i < kFeatures; ++i) error += weights[i] * x[i];
      for (int i = 0; i < kFeatures; ++i) gradient[i] += error * x[i];
      gradient[kFeatures] += error;
    }
    for (int i = 0; i <= kFeatures; ++i) gradient[i] /= samples;
    /* Without a handle the call waits. */
    if (tutti_allreduce(comm, "gradient", &gradient_tensor, TUTTI_AVERAGE, NULL) != TUTTI_OK)
      return failed(comm);
    for (int i = 0; i <= kFeatures; ++i) weights[i] -= 0.5 * gradient[i];
  }

  double worst = 0;
  for (int i = 0; i <= kFeatures; ++i) worst = fmax(worst, fabs(weights[i] - kTruth[i]));
  if (rank == 0) printf("largest error of a weight: %.2g on %d ranks\n", worst, size);
  tutti_destroy(comm);
  return worst < 1e-3 ? 0 : 1;
}

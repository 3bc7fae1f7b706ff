/* A network of two layers in C. The lines that end in "tutti" make it data-parallel. The gradient
 * of the output layer is exchanged while that of the hidden layer is computed. The trainer prints
 * its weights. With 2 ranks they equal those of one rank with the whole batch.
 */

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tutti.h> /* tutti */

enum { kInputs = 4, kHidden = 32, kBatch = 64, kSteps = 30 };

static double hidden[kHidden][kInputs], hidden_gradient[kHidden][kInputs];
static double output[kHidden], output_gradient[kHidden];
static double x[kBatch][kInputs], y[kBatch], activation[kBatch][kHidden], delta[kBatch];
static int fail(void) { return fprintf(stderr, "%s\n", tutti_last_error()), 1; } /* tutti */

static void begin(void) {
  for (int h = 0; h < kHidden; ++h) {
    output[h] = 0.2 * cos(3 * h);
    for (int i = 0; i < kInputs; ++i) hidden[h][i] = sin(h * kInputs + i);
  }
  for (int n = 0; n < kBatch; ++n) {
    for (int i = 0; i < kInputs; ++i) x[n][i] = sin(7 * n + 3 * i);
    y[n] = x[n][0] * x[n][1] - x[n][2];
  }
}

static void forward(int first, int end) {
  for (int n = first; n < end; ++n) {
    double sum = -y[n];
    for (int h = 0; h < kHidden; ++h) {
      double inner = 0;
      for (int i = 0; i < kInputs; ++i) inner += hidden[h][i] * x[n][i];
      activation[n][h] = tanh(inner);
      sum += output[h] * activation[n][h];
    }
    delta[n] = 2 * sum / (end - first);
  }
}

static void backward_output(int first, int end) {
  memset(output_gradient, 0, sizeof output_gradient);
  for (int n = first; n < end; ++n)
    for (int h = 0; h < kHidden; ++h) output_gradient[h] += delta[n] * activation[n][h];
}

static void backward_hidden(int first, int end) {
  memset(hidden_gradient, 0, sizeof hidden_gradient);
  for (int n = first; n < end; ++n)
    for (int h = 0; h < kHidden; ++h) {
      const double a = activation[n][h], inner = delta[n] * output[h] * (1 - a * a);
      for (int i = 0; i < kInputs; ++i) hidden_gradient[h][i] += inner * x[n][i];
    }
}

int main(void) {
  int first = 0, end = kBatch;
  begin();
  tutti_comm_t comm;                                                                  /* tutti */
  tutti_work_t work[2];                                                               /* tutti */
  tutti_tensor_t outer = tutti_vector(output_gradient, kHidden, TUTTI_F64);           /* tutti */
  tutti_tensor_t inner = tutti_vector(hidden_gradient, kHidden * kInputs, TUTTI_F64); /* tutti */
  if (tutti_create(&comm) != TUTTI_OK) return fail();                                 /* tutti */
  first = tutti_rank(comm) * kBatch / tutti_size(comm);                               /* tutti */
  end = first + kBatch / tutti_size(comm);                                            /* tutti */
  for (int step = 0; step < kSteps; ++step) {
    forward(first, end);
    backward_output(first, end);
    if (tutti_allreduce(comm, "outer", &outer, TUTTI_AVERAGE, &work[0])) return fail(); /* tutti */
    backward_hidden(first, end);
    if (tutti_allreduce(comm, "inner", &inner, TUTTI_AVERAGE, &work[1])) return fail(); /* tutti */
    for (int i = 0; i < 2; tutti_work_release(work[i++]))                               /* tutti */
      if (tutti_work_wait(work[i]) != TUTTI_OK) return fail();                          /* tutti */
    for (int h = 0; h < kHidden; ++h) {
      output[h] -= 0.05 * output_gradient[h];
      for (int i = 0; i < kInputs; ++i) hidden[h][i] -= 0.05 * hidden_gradient[h][i];
    }
  }
  if (tutti_rank(comm) != 0) return tutti_destroy(comm), 0; /* tutti */
  for (int h = 0; h < kHidden; ++h) printf("%.17g\n%.17g\n", output[h], hidden[h][0]);
  tutti_destroy(comm); /* tutti */
  return 0;
}

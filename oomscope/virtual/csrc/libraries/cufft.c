/* cuFFT: plans by number, and an estimate of their work area. Transforms stand in names/others.txt.
 *
 * cuFFT's own work areas are not published. The rule here, from its manual: one dimension whose length has no prime
 * factor above 7 and fits one kernel (8192 points) needs none; otherwise as much as the transformed data, and for
 * lengths with prime factors above 127 (Bluestein's algorithm, padded to a power of two) twice the padded data. */
#define _GNU_SOURCE
#include <pthread.h>

#include "libraries/library.h"

enum { SUCCESS = 0, INVALID_PLAN = 1, ALLOC_FAILED = 2, INVALID_VALUE = 4, SETUP_FAILED = 7, NOT_SUPPORTED = 16 };
enum { PLANS = 65536, RANKS = 3, LARGEST_FACTOR = 7, BLUESTEIN_FACTOR = 127, ONE_KERNEL_POINTS = 8192 };

typedef struct {
  void *stream, *work_area;
  size_t work_bytes;
  int allocates, owns_work_area;
} plan;

static plan *plans[PLANS];
static int used = 1; /* 0 is no plan */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static plan *plan_of(int number) { return number > 0 && number < PLANS ? plans[number] : NULL; }

CARD_API int cufftCreate(int *out) {
  int status = ALLOC_FAILED, number;
  plan *made;
  if (card_enter()) return SETUP_FAILED;
  made = calloc(1, sizeof *made);
  if (!made) return ALLOC_FAILED;
  made->allocates = 1;
  pthread_mutex_lock(&mutex);
  for (number = 1; number < used && plans[number]; number++) continue;
  if (number < PLANS) {
    plans[number] = made;
    used = number == used ? used + 1 : used;
    *out = number;
    status = SUCCESS;
  }
  pthread_mutex_unlock(&mutex);
  if (status) free(made);
  return status;
}
static void release_work_area(plan *p) {
  if (p->owns_work_area) card_free(p->work_area);
  p->work_area = NULL, p->owns_work_area = 0;
}
CARD_API int cufftDestroy(int number) {
  plan *p = plan_of(number);
  if (!p) return INVALID_PLAN;
  release_work_area(p);
  pthread_mutex_lock(&mutex);
  plans[number] = NULL;
  pthread_mutex_unlock(&mutex);
  free(p);
  return SUCCESS;
}
CARD_API int cufftSetStream(int number, void *stream) {
  plan *p = plan_of(number);
  if (!p) return INVALID_PLAN;
  p->stream = stream;
  return SUCCESS;
}
CARD_API int cufftSetAutoAllocation(int number, int allocates) {
  plan *p = plan_of(number);
  if (!p) return INVALID_PLAN;
  p->allocates = allocates;
  return SUCCESS;
}
CARD_API int cufftSetWorkArea(int number, void *area) {
  plan *p = plan_of(number);
  if (!p) return INVALID_PLAN;
  release_work_area(p);
  p->work_area = area;
  return SUCCESS;
}
static long long largest_factor(long long n) {
  long long largest = 1;
  for (long long factor = 2; factor * factor <= n; factor++)
    for (; n % factor == 0; n /= factor) largest = factor;
  return n > largest ? n : largest;
}
static size_t work_bytes(int rank, const long long *n, long long batch, size_t element) {
  size_t points = (size_t)(batch > 0 ? batch : 1), padding = 1;
  int needs_none = rank == 1;
  for (int i = 0; i < rank; i++) {
    long long factor = largest_factor(n[i]), padded = 1;
    points *= (size_t)n[i];
    needs_none = needs_none && factor <= LARGEST_FACTOR && n[i] <= ONE_KERNEL_POINTS;
    if (factor <= BLUESTEIN_FACTOR) continue;
    while (padded < 2 * n[i] - 1) padded *= 2;
    padding = (size_t)((2 * padded + n[i] - 1) / n[i]);
  }
  return needs_none ? 0 : points * element * padding;
}
/* Of two real and complex types the work is done in the complex one. */
CARD_API int cufftXtMakePlanMany(int number, int rank, const long long *n, const long long *inembed, long long istride,
                                 long long idist, int input, const long long *onembed, long long ostride,
                                 long long odist, int output, long long batch, size_t *bytes, int execution) {
  size_t in = library_type_bytes(input), out = library_type_bytes(output);
  plan *p = plan_of(number);
  (void)inembed, (void)istride, (void)idist, (void)onembed, (void)ostride, (void)odist, (void)execution;
  if (!p) return INVALID_PLAN;
  if (rank < 1 || rank > RANKS || !(in > out ? in : out)) return NOT_SUPPORTED;
  for (int i = 0; i < rank; i++)
    if (n[i] < 1) return INVALID_VALUE;
  card_unknown_workspace("cufftMakePlan");
  p->work_bytes = work_bytes(rank, n, batch, in > out ? in : out);
  if (bytes) *bytes = p->work_bytes;
  release_work_area(p);
  if (p->allocates && p->work_bytes) {
    if (card_malloc(&p->work_area, p->work_bytes)) return ALLOC_FAILED;
    p->owns_work_area = 1;
  }
  return SUCCESS;
}

int cufft_execute(int number, void *output) {
  plan *p = plan_of(number);
  if (!p) return INVALID_PLAN;
  card_launched(p->stream);
  library_written(output, 0);
  library_written(p->work_area, 0);
  return SUCCESS;
}

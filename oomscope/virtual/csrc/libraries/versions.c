/* Versions of NVIDIA's libraries: those that the torch in this process was built with.
 *
 * torch refuses a cuDNN older than the one it was compiled against, and asks for the version where a feature depends on
 * it. One card serves every torch, so it answers what torch's own metadata requires. */
#define _GNU_SOURCE
#include <dirent.h>
#include <link.h>
#include <stdio.h>

#include "libraries/library.h"

enum { PATH_BYTES = 4096 };

/* Find torch's package folder from the library of it that is mapped: .../torch/lib/libtorch_cuda.so */
static int find_torch(struct dl_phdr_info *info, size_t size, void *found) {
  static const char tail[] = "/torch/lib/libtorch_cuda.so";
  size_t length = info->dlpi_name ? strlen(info->dlpi_name) : 0, cut = sizeof tail - 1;
  (void)size;
  if (length < cut || length - cut >= PATH_BYTES || strcmp(info->dlpi_name + length - cut, tail)) return 0;
  memcpy(found, info->dlpi_name, length - cut);
  ((char *)found)[length - cut] = 0;
  return 1;
}

static int version_in(const char *file, const char *package) {
  char line[512];
  int version = 0;
  FILE *metadata = fopen(file, "r");
  if (!metadata) return 0;
  while (!version && fgets(line, sizeof line, metadata)) {
    int major, minor, patch;
    const char *equals = strstr(line, "==");
    if (!strncmp(line, "Requires-Dist: ", 15) && !strncmp(line + 15, package, strlen(package)) && equals &&
        sscanf(equals, "==%d.%d.%d", &major, &minor, &patch) == 3)
      version = major * 10000 + minor * 100 + patch;
  }
  fclose(metadata);
  return version;
}

int library_version(const char *package, int otherwise) {
  char site[PATH_BYTES] = "", file[2 * PATH_BYTES];
  int version = 0;
  DIR *folder;
  if (!dl_iterate_phdr(find_torch, site) || !(folder = opendir(site))) return otherwise;
  for (struct dirent *entry; !version && (entry = readdir(folder));) {
    size_t length = strlen(entry->d_name);
    if (strncmp(entry->d_name, "torch-", 6) || length < 10 || strcmp(entry->d_name + length - 10, ".dist-info")) continue;
    snprintf(file, sizeof file, "%s/%s/METADATA", site, entry->d_name);
    version = version_in(file, package);
  }
  closedir(folder);
  return version ? version : otherwise;
}

int library_version_of_toolkit(void) {
  static int version;
  if (!version) version = library_version("cuda-toolkit", 130202);
  return version;
}

/* cuBLAS counts its minor versions otherwise than the toolkit that carries it: 13.0 has 13.1, 13.2 has 13.4. */
int library_version_of_cublas(void) { return library_version_of_toolkit() < 130200 ? 130100 : 130401; }

/* Where torch's metadata does not say: the highest version that a supported torch was built with. */
int library_version_of_cudnn(void) {
  static int version;
  if (!version) version = library_version("nvidia-cudnn-cu", 92600);
  return version;
}

int library_part(int version, int part) {
  return part == 0 ? version / 10000 : part == 1 ? version / 100 % 100 : part == 2 ? version % 100 : 0;
}

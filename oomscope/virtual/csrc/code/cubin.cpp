#include "code/cubin.h"

#include <elf.h>
#include <string.h>

#include <algorithm>
#include <map>

namespace card {
namespace {

constexpr int machine_cuda = 190;
constexpr unsigned char info_max_threads = 0x05, info_parameter = 0x17, info_all_parameters = 0x19,
                        info_registers = 0x2f, info_large_parameter = 0x45;  // of kernels with more than 4 KiB of them
constexpr unsigned char form_short = 3, form_sized = 4;
constexpr int system_shared = 1024;  // that newer cards take of each block

struct Section {
  std::string name;
  const unsigned char *data;
  size_t bytes;
  unsigned info;
};

bool starts_with(const std::string &text, const char *start) { return text.compare(0, strlen(start), start) == 0; }

uint32_t word_at(const unsigned char *data) {
  uint32_t value;
  memcpy(&value, data, sizeof value);
  return value;
}

bool has_room(size_t all, uint64_t offset, uint64_t bytes) { return offset <= all && bytes <= all - offset; }

// The sections that lie within the image; none where it is no cubin.
std::vector<Section> sections_of(const unsigned char *image, size_t bytes) {
  Elf64_Ehdr header;
  if (!has_room(bytes, 0, sizeof header)) return {};
  memcpy(&header, image, sizeof header);
  bool is_cubin = memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_machine == machine_cuda;
  if (!is_cubin || header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum) return {};
  std::vector<Elf64_Shdr> table(header.e_shnum);
  if (!has_room(bytes, header.e_shoff, table.size() * sizeof(Elf64_Shdr))) return {};
  memcpy(table.data(), image + header.e_shoff, table.size() * sizeof(Elf64_Shdr));
  auto &names = table[header.e_shstrndx];
  if (!has_room(bytes, names.sh_offset, names.sh_size) || !names.sh_size) return {};
  auto *first_name = reinterpret_cast<const char *>(image + names.sh_offset);
  if (first_name[names.sh_size - 1]) return {};  // the last name has no end
  std::vector<Section> sections;
  for (auto &one : table) {
    bool has_data = one.sh_type != SHT_NOBITS && has_room(bytes, one.sh_offset, one.sh_size);
    if (one.sh_name < names.sh_size)
      sections.push_back(
          {first_name + one.sh_name, has_data ? image + one.sh_offset : nullptr, one.sh_size, one.sh_info});
  }
  return sections;
}

// Calls back with the kind and the data of each entry of an information section; a short one has no data, but a number
// where others have their size.
template <class Visit>
void each_entry(const Section &section, Visit visit) {
  for (size_t at = 0; section.data && at + 4 <= section.bytes;) {
    unsigned char form = section.data[at], kind = section.data[at + 1];
    uint16_t size = static_cast<uint16_t>(section.data[at + 2] | section.data[at + 3] << 8);
    at += 4;
    if (form == form_short) visit(kind, nullptr, size);
    if (form != form_sized) continue;
    if (at + size > section.bytes) return;
    visit(kind, section.data + at, size);
    at += size;
  }
}

void read_kernel(const Section &section, CubinKernel *kernel) {
  kernel->signature.is_known = true;
  std::map<uint32_t, size_t> large;  // by where they begin
  uint32_t all = 0;
  auto &bytes = kernel->signature.bytes;
  each_entry(section, [&](unsigned char kind, const unsigned char *data, size_t size) {
    if (!data) {
      if (kind == info_all_parameters) all = static_cast<uint32_t>(size);
      return;
    }
    if ((kind == info_parameter || kind == info_large_parameter) && size >= 12) {
      size_t ordinal = word_at(data + 4) & 0xffff;
      bytes.resize(std::max(bytes.size(), ordinal + 1));
      if (kind == info_parameter) bytes[ordinal] = word_at(data + 8) >> 18;
      if (kind == info_large_parameter) large[word_at(data + 4) >> 16] = ordinal;
    }
    if (kind == info_max_threads && size >= 12)
      kernel->max_threads = static_cast<int>(std::min(word_at(data) * word_at(data + 4) * word_at(data + 8), 1024u));
  });
  for (auto one = large.begin(); one != large.end(); ++one) {  // each up to the next
    uint32_t end = std::next(one) == large.end() ? all : std::next(one)->first;
    bytes[one->second] = end > one->first ? end - one->first : 0;
  }
  for (uint32_t each : bytes) kernel->signature.is_known &= each != 0;  // a form that is not read here
}

}  // namespace

std::vector<CubinKernel> kernels_of_cubin(const void *image, size_t bytes) {
  std::vector<CubinKernel> kernels;
  std::map<unsigned, int> registers;        // by symbol
  std::map<std::string, unsigned> symbols;  // of the code of each kernel
  std::map<std::string, int> shared;
  bool has_system_shared = false;
  for (auto &section : sections_of(static_cast<const unsigned char *>(image), bytes)) {
    if (starts_with(section.name, ".nv.info.")) {
      kernels.emplace_back();
      kernels.back().name = section.name.substr(9);
      read_kernel(section, &kernels.back());
    } else if (section.name == ".nv.info") {
      each_entry(section, [&](unsigned char kind, const unsigned char *data, size_t size) {
        if (data && kind == info_registers && size >= 8) registers[word_at(data)] = static_cast<int>(word_at(data + 4));
      });
    } else if (starts_with(section.name, ".text.")) {
      symbols[section.name.substr(6)] = section.info & 0xffffff;
    } else if (starts_with(section.name, ".nv.shared.reserved")) {
      has_system_shared = true;
    } else if (starts_with(section.name, ".nv.shared.")) {
      shared[section.name.substr(11)] = static_cast<int>(section.bytes);
    }
  }
  for (auto &kernel : kernels) {
    kernel.registers = registers[symbols[kernel.name]];
    kernel.static_shared = std::max(0, shared[kernel.name] - (has_system_shared ? system_shared : 0));
  }
  return kernels;
}

}  // namespace card

// Numbers as texts, and texts as numbers.

const grouped = (number) => String(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

// A BigInt over a divisor with so many decimals, rounded half up.
function decimal(number, divisor, places) {
  const scale = 10n ** BigInt(places);
  const scaled = (number * scale * 2n + divisor) / (divisor * 2n);
  const digits = String(scaled).padStart(places + 1, "0");
  const whole = grouped(digits.slice(0, digits.length - places));
  return places ? `${whole}.${digits.slice(-places)}` : whole;
}

const BINARY = [["EiB", 60n], ["PiB", 50n], ["TiB", 40n], ["GiB", 30n], ["MiB", 20n], ["KiB", 10n]];
const DECIMAL = [["E", 18n], ["P", 15n], ["T", 12n], ["G", 9n], ["M", 6n], ["k", 3n]];

function bytesText(number, places = 3) {
  for (const [unit, power] of BINARY) {
    if (number >= 1n << power) return `${decimal(number, 1n << power, places)} ${unit}`;
  }
  return `${number} B`;
}

function siText(number, places = 2) {
  for (const [unit, power] of DECIMAL) {
    if (number >= 10n ** power) return `${decimal(number, 10n ** power, places)} ${unit}`;
  }
  return String(number);
}

// 131072 -> 128k, where it is a whole number of them.
function tokensText(number) {
  if (number >= 1n << 20n && number % (1n << 20n) === 0n) return `${number >> 20n}M`;
  if (number >= 1n << 10n && number % (1n << 10n) === 0n) return `${number >> 10n}k`;
  return grouped(number);
}

const LARGEST = 10n ** 18n;
const COUNT = /^(\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)(?:\.(\d+))?(?:[eE]\+?(\d{1,2}))? ?([kKmMgG]?)$/;
const COUNT_UNITS = { "": 0n, k: 10n, m: 20n, g: 30n };

// A length as the command line reads it: 4096, 131,072, 128k = 131,072, 1M = 1,048,576, 1e6. Null is none.
function countFrom(text) {
  const match = text.length <= 64 ? COUNT.exec(text.trim()) : null;
  if (!match) return null;
  const [, whole, fraction = "", exponent = "0", unit] = match;
  const digits = BigInt(whole.replace(/[,_]/g, "") + fraction) * 10n ** BigInt(exponent);
  const scaled = digits << COUNT_UNITS[unit.toLowerCase()];
  const divisor = 10n ** BigInt(fraction.length);
  const number = scaled / divisor;
  return scaled % divisor === 0n && number >= 1n && number <= LARGEST ? number : null;
}

const SIZE = /^(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))? ?(|B|[kKMGTP]i?B)$/;

// A size as the command line reads it: 2GB = 2,000,000,000 bytes, 2GiB = 2,147,483,648. Null is none.
function bytesFrom(text) {
  const match = text.length <= 64 ? SIZE.exec(text.trim()) : null;
  if (!match) return null;
  const [, whole, fraction = "", unit] = match;
  const power = BigInt("BKMGTP".indexOf(unit ? unit[0].toUpperCase() : "B"));
  const size = unit.includes("i") ? 1n << (10n * power) : 10n ** (3n * power);
  const scaled = BigInt(whole.replace(/,/g, "") + fraction) * size;
  const divisor = 10n ** BigInt(fraction.length);
  const number = scaled / divisor;
  return scaled % divisor === 0n && number >= 1n && number <= LARGEST ? number : null;
}

// The shortest exact way to write a size.
function sizeText(number) {
  for (const [unit, power] of BINARY.slice(2)) {
    if (number % (1n << power) === 0n) return `${number >> power} ${unit}`;
  }
  return `${grouped(number)} B`;
}

function secondsText(seconds, digits = 3) {
  if (!Number.isFinite(seconds)) return "–";
  for (const [unit, size] of [["h", 3600], ["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (seconds >= size) return `${Number((seconds / size).toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 20, minimumSignificantDigits: digits })} ${unit}`;
  }
  return `${(seconds * 1e9).toPrecision(digits)} ns`;
}

// Closed forms: integer polynomials over BigInt, so that no number is rounded.

function prepared(pool) {
  const form = (terms) => terms.map(([coefficient, ...factors]) => ({ coefficient: BigInt(coefficient), factors }));
  const atoms = pool.atoms.map(([kind, first, second]) =>
    kind === "min"
      ? { left: form(first), right: form(second) }
      : { size: form(first), step: BigInt(second) });
  return { forms: pool.forms.map(form), atoms };
}

function ceilDiv(number, step) {
  const quotient = number / step;
  return number % step > 0n ? quotient + 1n : quotient;
}

function valueOf(terms, atoms, env) {
  let total = 0n;
  for (const { coefficient, factors } of terms) {
    let value = coefficient;
    for (const factor of factors) {
      value *= typeof factor === "string" ? env[factor] : atomValue(atoms[factor], atoms, env);
    }
    total += value;
  }
  return total;
}

function atomValue(atom, atoms, env) {
  if (atom.step !== undefined) return ceilDiv(valueOf(atom.size, atoms, env), atom.step);
  const left = valueOf(atom.left, atoms, env);
  const right = valueOf(atom.right, atoms, env);
  return left < right ? left : right;
}

const evaluate = (pool, place, env) => valueOf(pool.forms[place], pool.atoms, env);

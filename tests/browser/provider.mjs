// A login provider on loopback for tests/browser/test_access.py: node provider.mjs PORT REDIRECT_URI
// Any password is right; the login name chooses one of these people.
import Provider from 'oidc-provider';

const people = {
  ada: { email: 'ada@example.org', email_verified: true, groups: ['readers'] },
  olga: { email: 'olga@operators.example', email_verified: true, groups: ['operators'] },
  bob: { email: 'bob@elsewhere.example', email_verified: true, groups: [] },
  // Says that she is ada, which her provider has not checked.
  eve: { email: 'ada@example.org', email_verified: false, groups: [] },
};
const [port, redirectUri] = process.argv.slice(2);

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: 'kvcanary', client_secret: 'a secret of the test', redirect_uris: [redirectUri], post_logout_redirect_uris: [redirectUri] }],
  claims: { openid: ['sub', 'groups'], email: ['email', 'email_verified'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['a key of the test'] },
  pkce: { required: () => true },
  findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id, ...people[id] }) }),
});
// Streamlit asks for a choice of accounts; the built-in pages of this provider know the login alone.
provider.use((ctx, next) => {
  if (ctx.query.prompt === 'select_account') ctx.query = { ...ctx.query, prompt: 'login' };
  return next();
});
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));

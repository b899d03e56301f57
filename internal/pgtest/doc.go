// Package pgtest gives tests a Postgres: one server per test binary, one fresh database per test.
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, migrate)) }
//
//	func TestAppend(t *testing.T) {
//		t.Parallel()
//		url := pgtest.Database(t)
//		...
//	}
//
// The server starts when the first test asks for a database, and migrate runs once, on the database that the others
// are copied from. With TEST_DATABASE_URL set (a superuser, or a role that may create databases) that server is used
// instead. A test that wants to stop, restart or kill its server takes one of its own from [Server].
//
// The servers end with the test binary, however that ends: a second process of the same binary waits for its parent to
// go and then ends and removes what it left. The servers are quick rather than safe; what they lose in a power failure
// nobody will miss.
//
// For test files only. It imports package devstack and pgx, and no other package of this module.
package pgtest
